// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace espalier::cuda {

//! Returns the sum over the lanes of a warp from the first up to this one. All lanes call it.
__device__ inline std::int32_t sum_to_lane(std::int32_t sum) {
  for (unsigned d = 1; d < 32; d *= 2) {
    const std::int32_t before = __shfl_up_sync(0xFFFFFFFFU, sum, d);
    if (threadIdx.x % 32 >= d) sum += before;
  }
  return sum;
}

//! The shared memory that sums over the threads of a block need.
struct warp_sums {
  std::int32_t of[32];  //!< [warp]
};

//! Two sums over the threads of a block.
struct running_sum {
  std::int32_t before;  //!< the sum over the threads before this one
  std::int32_t all;
};

//! Adds up the numbers of all threads of a block. All threads call it.
//!
//! Complexity  five shuffles, two reductions over the warp and one barrier
//! Pre         blocks of whole warps, along x; a barrier has been passed since the memory was last used
__device__ inline running_sum sum_before(std::int32_t own, warp_sums& shared) {
  constexpr unsigned all_lanes = 0xFFFFFFFFU;
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const std::int32_t to_here = sum_to_lane(own);
  if (lane == 31) shared.of[warp] = to_here;
  __syncthreads();
  const std::int32_t of_warp = lane < blockDim.x / 32 ? shared.of[lane] : 0;
  const std::int32_t of_earlier = __reduce_add_sync(all_lanes, lane < warp ? of_warp : 0);
  return {of_earlier + to_here - own, __reduce_add_sync(all_lanes, of_warp)};
}

}  // namespace espalier::cuda
