// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <string>

#include "espalier/core/error.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier::detail {

// Whether a block draft can follow a target, which says config() and hidden_layers().
//
// Errors: model_error where the models do not fit one another; option_error where the target does not keep a layer.
template <class TargetT>
void check_block_draft_target(const block_draft_config& config, const TargetT& target) {
  const model_config& other = target.config();
  if (config.hidden_size != other.hidden_size) {
    raise<model_error>("the block draft has a \"hidden_size\" of ", config.hidden_size, ", but the target's is ",
                       other.hidden_size, ": they must be the same.");
  }
  if (config.hidden_layers.back() >= other.n_layers) {
    raise<model_error>("the block draft reads the target after ", config.hidden_layers.back() + 1,
                       " layers (\"target_layers\"), but the target has only ", other.n_layers, ".");
  }
  const auto& kept = target.hidden_layers();
  for (const int layer : config.hidden_layers) {
    if (std::find(kept.begin(), kept.end(), layer) != kept.end()) continue;
    std::string all;
    for (const int l : config.hidden_layers)
      all += (all.empty() ? "" : ", ") + std::to_string(l);
    raise<option_error>("option hidden_layers of the target does not list layer ", layer,
                        ", which the block draft reads; it must list ", all, ".");
  }
}

}  // namespace espalier::detail
