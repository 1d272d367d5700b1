// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda::detail {

// How kernels that work on rows of a vocabulary are spread over the device: a cluster of blocks a row.
struct row_tuning {
  unsigned threads;  // of a block: a multiple of 32, from 256 on
  unsigned blocks;   // of a cluster

  bool operator==(const row_tuning&) const = default;
};

inline constexpr unsigned row_threads = 512;

// Eight blocks a row where there are clusters, for eight are what every such device grants: 15 rows are 120 blocks. Rows of few
// numbers, where a barrier of the cluster costs more than reading them, have one.
constexpr row_tuning row_tuning_of(int capability_major, std::int32_t vocab) {
  return {row_threads, capability_major >= 9 && vocab > 8192 ? 8U : 1U};
}

inline row_tuning row_tuning_here(std::int32_t vocab) {
  int device = 0, major = 0;
  require(cudaGetDevice(&device), "cudaGetDevice");
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  return row_tuning_of(major, vocab);
}

}  // namespace espalier::cuda::detail
