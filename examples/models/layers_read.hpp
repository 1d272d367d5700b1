// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <vector>

#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/draft_head_config.hpp"
#include "espalier/model/llama/draft_kind.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "model_paths.hpp"

namespace models {

//! Returns the layers of the target whose states the block draft and the head of resolved paths read.
//!
//! Errors      espalier::model_error for a draft that does not fit the target
inline std::vector<int> layers_read(const model_paths& paths) {
  std::vector<int> layers;
  for (const std::string* path : {&paths.block, &paths.head}) {
    if (path->empty()) continue;
    std::vector<int> own;
    if (espalier::draft_kind_of(*path) == espalier::draft_kind::block) {
      own = espalier::block_draft_config::load(*path).hidden_layers;
    } else {
      auto config = espalier::draft_head_config::load(*path);
      config.require_target(espalier::model_files::open(paths.model).config, paths.model);
      own = config.hidden_layers;
    }
    layers.insert(layers.end(), own.begin(), own.end());
  }
  return layers;
}

}  // namespace models
