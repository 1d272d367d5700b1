// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdlib>

// The properties of the emulated device: the figures of an H100. A test may change them through emulator::device().

struct cudaDeviceProp {
  char name[256] = "Espalier emulator";
  int major = 9, minor = 0;
  int multiProcessorCount = 132;
  int warpSize = 32;
  int maxThreadsPerBlock = 1024;
  int maxThreadsPerMultiProcessor = 2048;
  int maxBlocksPerMultiProcessor = 32;
  int maxThreadsDim[3] = {1024, 1024, 64};
  int maxGridSize[3] = {2147483647, 65535, 65535};
  int regsPerBlock = 65536, regsPerMultiprocessor = 65536;
  std::size_t sharedMemPerBlock = 48 * 1024;
  std::size_t sharedMemPerBlockOptin = 227 * 1024;
  std::size_t sharedMemPerMultiprocessor = 228 * 1024;
  std::size_t reservedSharedMemPerBlock = 1024;
  std::size_t totalGlobalMem = std::size_t{80} << 30;
  std::size_t totalConstMem = 65536;
  int l2CacheSize = 50 << 20;
  int memoryBusWidth = 5120;
  int cooperativeLaunch = 1;
  int clusterLaunch = 1;
  int concurrentKernels = 1;
  int memoryPoolsSupported = 1;
  int unifiedAddressing = 1;
};

enum cudaDeviceAttr {
  cudaDevAttrMaxThreadsPerBlock = 1,
  cudaDevAttrMaxSharedMemoryPerBlock = 8,
  cudaDevAttrWarpSize = 10,
  cudaDevAttrMultiProcessorCount = 16,
  cudaDevAttrL2CacheSize = 38,
  cudaDevAttrMaxThreadsPerMultiProcessor = 39,
  cudaDevAttrComputeCapabilityMajor = 75,
  cudaDevAttrComputeCapabilityMinor = 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor = 81,
  cudaDevAttrCooperativeLaunch = 95,
  cudaDevAttrMaxSharedMemoryPerBlockOptin = 97,
  cudaDevAttrMaxBlocksPerMultiprocessor = 106,
  cudaDevAttrReservedSharedMemoryPerBlock = 111,
  cudaDevAttrMemoryPoolsSupported = 115,
  cudaDevAttrClusterLaunch = 120
};

namespace emulator {

inline cudaDeviceProp& device() {
  static cudaDeviceProp properties = [] {
    cudaDeviceProp p;
    const char* text = std::getenv("ESPALIER_EMULATOR_MULTIPROCESSORS");
    if (text != nullptr) p.multiProcessorCount = std::atoi(text);
    return p;
  }();
  return properties;
}

namespace detail {

//! The value of an attribute, or -1 for one that is not known.
inline int attribute(cudaDeviceAttr which) {
  const cudaDeviceProp& p = device();
  switch (which) {
    case cudaDevAttrMaxThreadsPerBlock:
      return p.maxThreadsPerBlock;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return static_cast<int>(p.sharedMemPerBlock);
    case cudaDevAttrWarpSize:
      return p.warpSize;
    case cudaDevAttrMultiProcessorCount:
      return p.multiProcessorCount;
    case cudaDevAttrL2CacheSize:
      return p.l2CacheSize;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return p.maxThreadsPerMultiProcessor;
    case cudaDevAttrComputeCapabilityMajor:
      return p.major;
    case cudaDevAttrComputeCapabilityMinor:
      return p.minor;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return static_cast<int>(p.sharedMemPerMultiprocessor);
    case cudaDevAttrCooperativeLaunch:
      return p.cooperativeLaunch;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return static_cast<int>(p.sharedMemPerBlockOptin);
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return p.maxBlocksPerMultiProcessor;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return static_cast<int>(p.reservedSharedMemPerBlock);
    case cudaDevAttrMemoryPoolsSupported:
      return p.memoryPoolsSupported;
    case cudaDevAttrClusterLaunch:
      return p.clusterLaunch;
  }
  return -1;
}

//! Blocks that fit on one multiprocessor; registers are not counted.
inline int resident_blocks(int threads, std::size_t shared) {
  const cudaDeviceProp& p = device();
  if (threads <= 0 || threads > p.maxThreadsPerBlock || shared > p.sharedMemPerBlockOptin) return 0;
  const int by_threads = p.maxThreadsPerMultiProcessor / ((threads + 31) / 32 * 32);
  const auto by_shared = static_cast<int>(p.sharedMemPerMultiprocessor / (shared + p.reservedSharedMemPerBlock));
  const int fewer = by_threads < by_shared ? by_threads : by_shared;
  return fewer < p.maxBlocksPerMultiProcessor ? fewer : p.maxBlocksPerMultiProcessor;
}

}  // namespace detail

}  // namespace emulator
