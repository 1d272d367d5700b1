// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/block_draft_model.cpp
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/draft_tokens.hpp"

namespace espalier {

//! A block draft as its files hold it: its shape, and the source of its tensors.
struct block_draft_files {
  block_draft_config config;
  std::unique_ptr<tensor_source> tensors;

  //! Opens a GGUF file, or a folder with a config.json and a model.safetensors. The config says then whether the file
  //! has an embedding and an output matrix of its own.
  //!
  //! Errors      model_error that names the file and what is wrong with it, or does not fit this target
  template <class TargetT>
  static block_draft_files open(const std::string& path, const TargetT& target) {
    block_draft_files files{block_draft_config::load(path), nullptr};
    block_draft_config& config = files.config;
    detail::check_block_draft_target(config, target);
    if (config.is_gguf()) {
      files.tensors = std::make_unique<gguf_file>(path);
    } else {
      files.tensors = std::make_unique<safetensors_file>(path + "/model.safetensors");
      if (config.is_dflash()) {
        config.has_embedding = files.tensors->find("embed_tokens.weight") != nullptr;
        config.has_head = files.tensors->find("lm_head.weight") != nullptr;
      }
    }
    std::string target_file = "in use";
    if constexpr (requires { target.where(); }) target_file = target.where();
    detail::require_own_head(config, *files.tensors, config.is_gguf() ? "output.weight" : "lm_head.weight",
                             target_file);
    return files;
  }
};

}  // namespace espalier
