// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/chain.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! The rows that a StepDrafter gave in a round, by text and node, in device memory: one espalier::node_rows for each
//! text.
//!
//! Shapes      row_of [places][n_nodes]: index in `rows` of the row of a node, -1 if no row was asked for; nullptr if
//!             there are no rows
struct text_rows {
  vocab_rows<float> rows;
  const std::int32_t* row_of = nullptr;
  std::int32_t n_nodes = 0;

  ESPALIER_HOST_DEVICE node_rows<float> of(std::int32_t place) const {
    return {rows, row_of == nullptr ? nullptr : row_of + static_cast<std::ptrdiff_t>(place) * n_nodes};
  }
};

//! The answer of a BlockDrafter: one espalier::block_rows for each lane (a text of the round), and the faults in which
//! readers report logits from which no token can be drawn.
//!
//! Shapes      logits [lanes][length][vocab], by text_in_batch::lane; found [places], by text_in_batch::place; tokens
//!             [vocab]: the token of each column of the logits, each once; nullptr: columns are tokens
template <class NumberT>
struct block_rows {
  vocab_rows<NumberT> logits;
  std::int32_t length = 0;
  fault* found = nullptr;
  const token_id* tokens = nullptr;
};

template <class NumberT>
block_rows(vocab_rows<NumberT>, std::int32_t, fault*, const token_id*) -> block_rows<NumberT>;

//! The answer of a SequenceDrafter: the tokens of espalier::token_run of each text, in the memory of the device. Unlike
//! espalier::token_run it does not tell how long the match before the run is, since no policy on the device asks.
//!
//! Shapes      tokens [places][max], of which the first n of each are valid; n [places]
struct text_runs {
  const token_id* tokens = nullptr;
  const std::int32_t* n = nullptr;
  std::int32_t max = 0;

  ESPALIER_HOST_DEVICE const token_id* of(std::int32_t place) const {
    return tokens + static_cast<std::ptrdiff_t>(place) * max;
  }
};

namespace detail {

// Appends the tokens of a text's run to its tree, one after the other and `most` at most. Called by one thread.
__device__ inline void append_run(const text_in_batch& here, const text_runs& runs, std::int32_t most) {
  const token_id* const tokens = runs.of(here.place);
  const std::int32_t n = runs.n[here.place] < most ? runs.n[here.place] : most;
  node_id u = root_node;
  for (std::int32_t i = 0; i < n && u != no_node; ++i)
    u = here.tree.append(u, tokens[i], 0.0F);
}

}  // namespace detail

}  // namespace espalier::cuda
