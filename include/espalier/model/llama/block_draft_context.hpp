// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <vector>

#include "espalier/kv_store/contiguous.hpp"

namespace espalier {

//! What a block_draft_model has read of one text: keys and values of each layer and the states that they come from, by
//! position; and the hidden states of the target that its next pass is to read.
struct block_draft_context {
  contiguous_kv kv;
  std::vector<float> states;  //!< [max_positions][hidden_size]
  std::vector<float> unread;  //!< [rows][layers read * hidden_size], of positions from first_unread on
  int first_unread = 0;
  int n_unread = 0;
};

}  // namespace espalier
