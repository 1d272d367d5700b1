// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/block_diffusion.cu
#pragma once

#include "espalier/cuda/core/device_array.cuh"

namespace espalier::cuda::detail {

// The memory in which the rows of one drafter's blocks are corrected by path.
template <class NumberT, class LogitT>
struct correction_memory {
  device_array<NumberT> vectors;  // [max_texts][max_nodes][rank] of a Markov head
  device_array<LogitT> logits;    // [max_texts][max_nodes][columns]
};

}  // namespace espalier::cuda::detail
