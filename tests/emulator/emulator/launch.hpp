// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <tuple>
#include <type_traits>

#include "emulator/api.hpp"

// Launches, the attributes of kernels, and checks of them.

enum cudaFuncAttribute {
  cudaFuncAttributeMaxDynamicSharedMemorySize = 8,
  cudaFuncAttributePreferredSharedMemoryCarveout = 9,
  cudaFuncAttributeNonPortableClusterSizeAllowed = 13
};
struct cudaFuncAttributes {
  int ptxVersion;
  int maxThreadsPerBlock;
};
enum cudaLaunchAttributeID {
  cudaLaunchAttributeCooperative = 2,
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
  cudaLaunchAttributePriority = 8
};
struct emulator_cluster_dimension {
  unsigned x, y, z;
};
union cudaLaunchAttributeValue {
  emulator_cluster_dimension clusterDim;
  int cooperative;
  int programmaticStreamSerializationAllowed;
  int priority;
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  cudaLaunchAttributeValue val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  std::size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

namespace emulator::detail {

//! Turns a configuration into a launch, or says why the device would refuse it.
inline cudaError_t examine(const runtime& r, const cudaLaunchConfig_t& config, const void* kernel, launch& job) {
  const cudaDeviceProp& p = device();
  job.grid = config.gridDim, job.block = config.blockDim, job.shared = config.dynamicSmemBytes;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttributeValue& value = config.attrs[i].val;
    if (config.attrs[i].id == cudaLaunchAttributeCooperative) job.cooperative = value.cooperative != 0;
    if (config.attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
      job.overlaps = value.programmaticStreamSerializationAllowed != 0;
    if (config.attrs[i].id == cudaLaunchAttributeClusterDimension) {
      job.cluster = dim3(value.clusterDim.x, value.clusterDim.y, value.clusterDim.z);
    }
  }
  const auto within = [](dim3 d, const int* limit) {
    return d.x >= 1 && d.y >= 1 && d.z >= 1 && d.x <= static_cast<unsigned>(limit[0]) &&
           d.y <= static_cast<unsigned>(limit[1]) && d.z <= static_cast<unsigned>(limit[2]);
  };
  const std::size_t threads = volume(job.block), blocks_in_cluster = volume(job.cluster);
  if (!within(job.grid, p.maxGridSize) || !within(job.block, p.maxThreadsDim)) return cudaErrorInvalidConfiguration;
  if (threads > static_cast<std::size_t>(p.maxThreadsPerBlock)) return cudaErrorInvalidConfiguration;
  const auto limit = r.shared_limit.find(kernel);
  if (job.shared > (limit != r.shared_limit.end() ? limit->second : p.sharedMemPerBlock)) return cudaErrorInvalidValue;
  if (blocks_in_cluster == 0 || blocks_in_cluster > (r.wide_clusters.count(kernel) != 0 ? 16U : 8U)) {
    return cudaErrorInvalidClusterSize;
  }
  if (job.grid.x % job.cluster.x != 0 || job.grid.y % job.cluster.y != 0 || job.grid.z % job.cluster.z != 0) {
    return cudaErrorInvalidConfiguration;
  }
  const auto resident = static_cast<std::size_t>(resident_blocks(static_cast<int>(threads), job.shared));
  if (job.cooperative && volume(job.grid) > resident * static_cast<std::size_t>(p.multiProcessorCount)) {
    return cudaErrorCooperativeLaunchTooLarge;
  }
  return cudaSuccess;
}

namespace api {

template <class... P, class... A>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A&&... arguments) {
  static_assert((std::is_trivially_copyable_v<P> && ...), "a kernel's parameters are copied as bytes");
  using closure = std::pair<void (*)(P...), std::tuple<P...>>;
  return call(__func__, allowed, [&](runtime& r) {
    launch job;
    const cudaError_t fault = examine(r, *config, reinterpret_cast<const void*>(kernel), job);
    if (fault != cudaSuccess) return fault;
    job.body = [](const void* what) {
      const auto& [function, parameters] = *static_cast<const closure*>(what);
      std::apply(function, parameters);
    };
    return enqueue(r, config->stream, cudaGraphNodeTypeKernel,
                   [job, call = closure(kernel, std::tuple<P...>(std::forward<A>(arguments)...))]() mutable {
                     job.closure = &call;
                     the_scheduler.run(job);
                   });
  });
}

template <class T>
cudaError_t cudaFuncSetAttribute(T* kernel, cudaFuncAttribute which, int value) {
  return call(__func__, allowed, [&](runtime& r) {
    const void* key = reinterpret_cast<const void*>(kernel);
    if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) {
      if (value < 0 || static_cast<std::size_t>(value) > emulator::device().sharedMemPerBlockOptin) {
        return cudaErrorInvalidValue;
      }
      r.shared_limit[key] = static_cast<std::size_t>(value);
    }
    if (which == cudaFuncAttributeNonPortableClusterSizeAllowed) {
      if (value != 0) r.wide_clusters.insert(key);
      if (value == 0) r.wide_clusters.erase(key);
    }
    return cudaSuccess;
  });
}

// Kernels count as compiled for the device that is emulated.
template <class T>
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, T*) {
  return call(__func__, allowed, [&](auto&) {
    attributes->ptxVersion = 10 * emulator::device().major + emulator::device().minor;
    attributes->maxThreadsPerBlock = emulator::device().maxThreadsPerBlock;
    return cudaSuccess;
  });
}

template <class T>
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, T*, int threads, std::size_t shared) {
  return call(__func__, allowed, [&](auto&) {
    *blocks = resident_blocks(threads, shared);
    return cudaSuccess;
  });
}

template <class T>
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, T* kernel, const cudaLaunchConfig_t* config) {
  return call(__func__, allowed, [&](runtime& r) {
    launch job;
    const cudaError_t fault = examine(r, *config, reinterpret_cast<const void*>(kernel), job);
    if (fault != cudaSuccess) return fault;
    const int blocks = resident_blocks(static_cast<int>(volume(job.block)), job.shared);
    *clusters = blocks * emulator::device().multiProcessorCount / static_cast<int>(volume(job.cluster));
    return cudaSuccess;
  });
}

}  // namespace api

}  // namespace emulator::detail
