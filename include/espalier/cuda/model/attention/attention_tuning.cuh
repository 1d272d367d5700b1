// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/cuda/core/error.cuh"

namespace espalier::cuda {

//! The numbers by which tree attention is fitted to a device.
//!
//! Costs are in units of some 200 clocks of a multiprocessor that two thread blocks share. They are estimated for
//! compute capability 9.0, not measured. For a block of 64 slots of 128 numbers, a tile of 64 rows is bound by the
//! second cache (32 KiB at 24 bytes a clock: 1,370 clocks; shared memory 1,020, mma.sync 810), one of 128 rows by
//! mma.sync (1,610; shared memory 1,280), one of 192 rows by wgmma (1,536; some 1,800 with the work that does not
//! overlap).
struct attention_tuning {
  std::int32_t multiprocessors = 1;
  std::int32_t shared_bytes = 0;     //!< shared memory of a multiprocessor
  std::int32_t resident_blocks = 2;  //!< thread blocks that a multiprocessor can hold, as registers allow
  std::int32_t max_splits = 32;      //!< parts of the context, 1 to 32
  std::int32_t small_tile_cost = 7;  //!< cost of a tile of 64 rows, for each block of slots
  std::int32_t large_tile_cost = 8;  //!< cost of a tile of 128 rows, for each block of slots
  std::int32_t group_tile_cost = 9;  //!< cost of a tile of 192 rows by warpgroups, which has a multiprocessor to itself
  std::int32_t start_cost = 20;      //!< cost of a thread block, before its first block of slots
  std::int32_t merge_cost = 20;      //!< cost of the second kernel, if the context is split
  std::int32_t merge_bytes = 360'000;  //!< bytes that this kernel moves in a unit of time
  std::int32_t path_context = 1024;    //!< by position, rows read all keys themselves if the context is at most this
                                       //!< long,
  std::int64_t path_bytes = 32 << 20;  //!< and all rows together read at most this many bytes
  bool warpgroups = false;             //!< products by wgmma; needs compute capability 9.0 and code for sm_90a, and has
                                       //!< no effect elsewhere
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
