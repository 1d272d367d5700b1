// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/prompt_lookup.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"

namespace espalier::cuda::detail {

// Appends the tokens of a text's run to its tree, one after the other and `most` at most. Called by one thread.
__device__ inline void append_run(const text_in_batch& here, const text_runs& runs, std::int32_t most) {
  const token_id* const tokens = runs.of(here.place);
  const std::int32_t n = runs.n[here.place] < most ? runs.n[here.place] : most;
  node_id u = root_node;
  for (std::int32_t i = 0; i < n && u != no_node; ++i)
    u = here.tree.append(u, tokens[i], 0.0F);
}

}  // namespace espalier::cuda::detail
