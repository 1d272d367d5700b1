// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/draft_head_model.cpp
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/model/llama/model_weights.hpp"

namespace espalier {

//! A target as its draft heads and blocks know it: its shape, its embedding, final norm and output matrix, and the
//! request that it keep the states of some layers. A llama_backend is one. Of a target that another engine runs, these
//! weights are read from the model's files once more, without its layers:
//!
//!     const llama_cpp_model model("model.gguf");
//!     llama_cpp_backend target(model);
//!     feature_steps drafter(draft_head_model::load("models/head", draft_target("model.gguf", target)));
//!
//! Errors      model_error as llama_backend::load; option_error if the engine's vocabulary is not the files'
//! Pre         the target lives where it is until the head or block is made
class draft_target {
 public:
  draft_target(llama_backend& target)
      : config_(target.config()),
        weights_(target.weights()),
        where_(target.where()),
        max_positions_(target.max_positions()),
        n_threads_(target.n_threads()),
        keep_([&target](std::span<const int> layers) { target.keep_hidden(layers); }) {}

  //! The target that `engine` runs, from the model's files: a GGUF file or a folder. EngineT has vocab_size(),
  //! max_positions(), keep_hidden(layers) and hidden(layer, row), as llama_backend. The head's passes have `threads`
  //! threads; 0: one for each processor.
  template <class EngineT>
  draft_target(const std::string& path, EngineT& engine, int threads = 0)
      : where_(path), keep_([&engine](std::span<const int> layers) { engine.keep_hidden(layers); }) {
    const model_files files = model_files::open(path);
    config_ = files.config;
    if (engine.vocab_size() != config_.vocab_size) {
      raise<option_error>("the engine's model has ", engine.vocab_size(), " tokens, but that in ", path, " has ",
                          config_.vocab_size, ": it is another model.");
    }
    weights_ = std::make_shared<const model_weights>(model_weights::load(config_.without_layers(), *files.tensors));
    max_positions_ = (std::min)(config_.max_positions, static_cast<int>(engine.max_positions()));
    n_threads_ = threads > 0 ? threads : thread_team::of_processors();
  }

  const model_config& config() const { return config_; }
  //! The weights, whose layers may be missing.
  const std::shared_ptr<const model_weights>& weights() const { return weights_; }
  //! The path of the target's files, for messages.
  const std::string& where() const { return where_; }
  int max_positions() const { return max_positions_; }
  int n_threads() const { return n_threads_; }
  //! Makes the output of these layers, from 0, readable after the target's passes.
  //!
  //! Errors      option_error for a layer that the engine cannot give
  void keep_hidden(std::span<const int> layers) const { keep_(layers); }

 private:
  model_config config_;
  std::shared_ptr<const model_weights> weights_;
  std::string where_;
  int max_positions_ = 0;
  int n_threads_ = 0;
  std::function<void(std::span<const int>)> keep_;
};

}  // namespace espalier
