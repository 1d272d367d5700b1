// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda {

//! The numbers by which tree attention is fitted to a device.
//!
//! Costs are in units of some 200 ns of a multiprocessor that two thread blocks share, estimated from counts of bytes
//! and products for compute capability 9.0. On an H200 a unit took 0.13 to 0.23 us, over prefixes of 512 to 16,384
//! slots and 1 to 1,024 nodes; the form with the least estimate took at most 1 % more than the quicker one for 14 of
//! these 15 shapes, and 21 % more for 64 nodes after 512 slots (bench/cuda/attention.cu).
struct attention_tuning {
  std::int32_t multiprocessors = 1;
  std::int32_t shared_bytes = 0;     //!< shared memory of a multiprocessor
  std::int32_t resident_blocks = 2;  //!< thread blocks that a multiprocessor can hold, as registers allow
  std::int32_t max_splits = 32;      //!< parts of the context, 1 to 32
  std::int32_t small_tile_cost = 7;  //!< cost of a tile of 64 rows, for each block of slots
  std::int32_t large_tile_cost = 8;  //!< cost of a tile of 128 rows, for each block of slots
  std::int32_t group_tile_cost = 9;  //!< cost of a tile of 192 rows by warpgroups, which has a multiprocessor to itself
  std::int32_t start_cost = 20;      //!< cost of a thread block, before its first block of slots
  std::int32_t group_start_cost = 22;  //!< the same, by warpgroups
  std::int32_t merge_cost = 20;        //!< cost of the second kernel, if the context is split
  std::int32_t merge_bytes = 360'000;  //!< bytes that this kernel moves in a unit of time
  std::int32_t path_context = 1024;    //!< by position, rows read all keys themselves if the context is at most this
                                       //!< long,
  std::int64_t path_bytes = 32 << 20;  //!< and all rows together read at most this many bytes
  bool warpgroups = true;              //!< products by wgmma where the costs say so, or, by position, always; needs
                                       //!< compute capability 9.0 and code for sm_90a, and has no effect elsewhere
};

//! The tuning for a compute capability, given as 10 * major + minor.
constexpr attention_tuning attention_tuning_for(std::int32_t capability, std::int32_t multiprocessors) {
  attention_tuning tuning;
  tuning.multiprocessors = multiprocessors;
  if (capability >= 120 || capability == 86 || capability == 89) {
    tuning.shared_bytes = 100 * 1024;
  } else if (capability >= 90) {
    tuning.shared_bytes = 228 * 1024;
  } else {
    tuning.shared_bytes = 164 * 1024;
  }
  return tuning;
}

//! The tuning for the present device.
inline attention_tuning attention_tuning_of_device() {
  int device = 0, major = 0, minor = 0, multiprocessors = 0;
  require(cudaGetDevice(&device), "cudaGetDevice");
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  require(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  require(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return attention_tuning_for(10 * major + minor, multiprocessors);
}

}  // namespace espalier::cuda
