// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/llama/block_draft_config.hpp"
#include "espalier/model/llama/block_draft_model.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "tokenizer.hpp"

namespace models {

//! A target model, its draft model and their tokenizer: DIR/target, DIR/draft, DIR/tokenizer.model. Where there is a
//! folder DIR/block, a block draft, too; the target then keeps the hidden states that it reads.
//!
//!     models::model_folder folder = models::model_folder::load("examples/models", {.max_rows = 288});
//!     espalier::contiguous_kv kv = folder.make_cache(folder.target);
//!
//! Errors      espalier::model_error that names the missing or wrong file, or what of the models does not fit together
struct model_folder {
  std::string folder;  //!< its path
  tokenizer text;
  espalier::llama_backend target;
  espalier::llama_backend draft;
  std::optional<espalier::block_draft_model> block{};

  //! options.max_rows: the longest forward pass of either, a tree and its pending token.
  static model_folder load(const std::string& folder, const espalier::llama_options& options = {}) {
    for (const char* part : {"target/config.json", "target/model.safetensors", "draft/config.json",
                             "draft/model.safetensors", "tokenizer.model"}) {
      if (!std::filesystem::is_regular_file(folder + "/" + part)) {
        espalier::raise<espalier::model_error>("the model folder ", folder, " has no ", part,
                                               "; it needs the folders target and draft, each with config.json and "
                                               "model.safetensors, and a tokenizer.model.");
      }
    }
    const bool has_block = std::filesystem::is_directory(folder + "/block");
    espalier::llama_options target_options = options, draft_options = options;
    // What selectors read.
    target_options.hidden_layers.push_back(espalier::model_config::load(folder + "/target").n_layers - 1);
    draft_options.hidden_layers.push_back(espalier::model_config::load(folder + "/draft").n_layers - 1);
    if (has_block) {
      const auto read = espalier::block_draft_config::load(folder + "/block").hidden_layers;
      target_options.hidden_layers.insert(target_options.hidden_layers.end(), read.begin(), read.end());
    }
    model_folder models{folder, tokenizer::load(folder + "/tokenizer.model"),
                        espalier::llama_backend::load(folder + "/target", target_options),
                        espalier::llama_backend::load(folder + "/draft", draft_options)};
    if (has_block) models.block = espalier::block_draft_model::load(folder + "/block", models.target);
    if (models.target.vocab_size() != models.draft.vocab_size()) {
      espalier::raise<espalier::model_error>("the target in ", folder, " has a vocabulary of ",
                                             models.target.vocab_size(), " and the draft one of ",
                                             models.draft.vocab_size(), "; they must be the same.");
    }
    if (models.text.size() > models.target.vocab_size()) {
      espalier::raise<espalier::model_error>("the tokenizer in ", folder, " has ", models.text.size(),
                                             " pieces, more than the models' vocabulary of ",
                                             models.target.vocab_size(), ".");
    }
    return models;
  }

  //! Tokens that both models can follow.
  int context() const { return (std::min)(target.max_positions(), draft.max_positions()); }

  //! A cache for one sequence of one of the two models, as long as the context.
  espalier::contiguous_kv make_cache(const espalier::llama_backend& model,
                                     espalier::commit_mode mode = espalier::commit_mode::compact) const {
    return {model.config().n_layers, model.config().kv_size(), 1, context(), mode};
  }
};

}  // namespace models
