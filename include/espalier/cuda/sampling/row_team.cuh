// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/cuda/core/team.cuh"

namespace espalier::cuda::detail {

// The blocks that work on one row and read each other's shared memory.
struct row_team {
  std::int32_t rank = 0;  // of this block
  std::int32_t size = 1;  // blocks

  __device__ static row_team here() {
    return {static_cast<std::int32_t>(cluster_rank()), static_cast<std::int32_t>(cluster_blocks())};
  }
  // No block ends before the others have read what it holds, if this is the last that all of them do.
  __device__ void sync() const {
    if (size > 1) {
      sync_cluster();
    } else {
      __syncthreads();
    }
  }
  // Where block `r` has what this block has at `mine`.
  template <class ElementT>
  __device__ ElementT* of(std::int32_t r, ElementT* mine) const {
    return size > 1 ? in_block(mine, static_cast<unsigned>(r)) : mine;
  }
};

}  // namespace espalier::cuda::detail
