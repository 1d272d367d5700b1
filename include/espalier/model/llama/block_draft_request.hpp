// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/core/token.hpp"
#include "espalier/model/llama/block_draft_context.hpp"

namespace espalier {

//! A block that is asked for: the tokens after the pending one, which stands at this position of a text. All positions
//! before it were read; with nothing before it, the block sees itself alone.
struct block_draft_request {
  block_draft_context* context;
  token_id pending;
  int position;   //!< below max_positions()
  int place = 0;  //!< where the logits are kept; no two of a pass have one
};

}  // namespace espalier
