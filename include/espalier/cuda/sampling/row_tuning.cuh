// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/launch.cuh"

namespace espalier::cuda::detail {

// How kernels that work on rows of a vocabulary are spread over the device: a cluster of blocks a row.
struct row_tuning {
  unsigned threads;  // of a block: a multiple of 32, from 256 on
  unsigned blocks;   // of a cluster

  // A team for each of n rows of each lane.
  launch_shape shape(std::int32_t n, std::size_t shared_bytes, std::int32_t n_lanes = 1) const {
    return {dim3(static_cast<unsigned>(n) * blocks, static_cast<unsigned>(n_lanes)), threads, shared_bytes, blocks};
  }

  bool operator==(const row_tuning&) const = default;
};

inline constexpr unsigned row_threads = 512;

// Eight blocks a row where there are clusters, for eight are what every such device grants: 15 rows are 120 blocks.
// Rows of few numbers, where a barrier of the cluster costs more than reading them, have one.
constexpr row_tuning row_tuning_of(int compiled_major, std::int32_t vocab, unsigned blocks = 8) {
  return {row_threads, compiled_major >= 9 && vocab > 8192 ? blocks : 1U};
}

// Never launched: tells which architecture the kernels of this program were compiled for.
template <class UnusedT = void>
ESPALIER_KERNEL void compiled_for() {}

// Of the present device, as far as this program knows of it: kernels that were compiled for 8.0 alone run on later
// devices, too, but have no clusters there.
inline row_tuning row_tuning_here(std::int32_t vocab, unsigned blocks = 8) {
  cudaFuncAttributes attributes = {};
  require(cudaFuncGetAttributes(&attributes, compiled_for<>), "cudaFuncGetAttributes");
  return row_tuning_of(attributes.ptxVersion / 10, vocab, blocks);
}

}  // namespace espalier::cuda::detail
