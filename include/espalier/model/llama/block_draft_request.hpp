// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/kv_store/contiguous.hpp"

namespace espalier {

//! What a block_draft_model has read of one text: keys and values of each layer and the states that they come from, by
//! position.
struct block_draft_context {
  contiguous_kv kv;
  std::vector<float> states;  //!< [max_positions][hidden_size]
};

//! A block that is asked for: the tokens after the pending one, which stands at this position of a text. All positions
//! before it were read; with nothing before it, the block sees itself alone.
struct block_draft_request {
  block_draft_context* context;
  token_id pending;
  int position;   //!< below max_positions()
  int place = 0;  //!< where the logits are kept; no two of a pass have one
};

}  // namespace espalier
