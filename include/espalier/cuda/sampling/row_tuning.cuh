// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/sampling/sampler.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/launch.cuh"

namespace espalier::cuda::detail {

// The shape of launches that work on rows of a vocabulary: a cluster of blocks works on a row.
struct row_tuning {
  unsigned threads;  // threads of a block: a multiple of 32, at least 256
  unsigned blocks;   // blocks of a cluster

  // Returns the shape of a launch with one team for each of n rows of each lane.
  launch_shape shape(std::int32_t n, std::size_t shared_bytes, std::int32_t n_lanes = 1) const {
    return {dim3(static_cast<unsigned>(n) * blocks, static_cast<unsigned>(n_lanes)), threads, shared_bytes, blocks};
  }

  bool operator==(const row_tuning&) const = default;
};

inline constexpr unsigned row_threads = 512;

// Returns the shape for code that was compiled for this major architecture. If there are clusters, a row has `blocks`
// blocks; eight are the most that every device with clusters can launch. Short rows, for which a barrier of the cluster
// costs more than reading the row, have one block.
constexpr row_tuning row_tuning_of(int compiled_major, std::int32_t vocab, unsigned blocks = 8) {
  return {row_threads, compiled_major >= 9 && vocab > 8192 ? blocks : 1U};
}

// A kernel that is never launched: its attributes tell for which architecture the kernels of this program were
// compiled.
template <class UnusedT = void>
ESPALIER_KERNEL void compiled_for() {}

// Returns the shape for the present device and this program. Kernels that were compiled for compute capability 8.0
// alone also run on later devices, but have no clusters there.
inline row_tuning row_tuning_here(std::int32_t vocab, unsigned blocks = 8) {
  cudaFuncAttributes attributes = {};
  require(cudaFuncGetAttributes(&attributes, compiled_for<>), "cudaFuncGetAttributes");
  return row_tuning_of(attributes.ptxVersion / 10, vocab, blocks);
}

}  // namespace espalier::cuda::detail
