// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/model/llama_cpp/llama_cpp_kv.hpp"
#include "espalier/model/llama_cpp/llama_cpp_model.hpp"

namespace espalier {

//! The passes of a model that llama.cpp runs, as target or as draft.
//!
//!     const llama_cpp_model model("model.gguf");
//!     llama_cpp_kv cache(model, {.capacity = 4096});
//!     auto decode = make_decoder(prompt_lookup(), chain(), greedy(), cache, llama_cpp_backend(model));
//!
//! Hidden states are to be had of the architectures for which llama.cpp gives them, and of all layers but the last
//! (llama.cpp has the inputs of layers). A draft head asks for them: see draft_target.
//!
//! Shapes      logits [n_outputs][vocab_size]
//! Complexity  one llama_decode a pass; the ids of its rows take O(rows * depth) more
//! Law         Backend's, within llama.cpp's rounding, which depends on how many rows a pass has and on where they lie
//! Errors      input_error for more than max_rows() rows, a token outside the vocabulary, a batch that is no tree's,
//!             and for more leaves than there are sequence ids; llama_cpp_error if llama.cpp fails or a server goes
//!             away. Sequences then keep their committed rows; for their scratch see llama_cpp_kv::pass
//! Pre         caches are of this model; one pass of a cache at a time
class llama_cpp_backend {
 public:
  explicit llama_cpp_backend(llama_cpp_model model) : model_(std::move(model)) {}

  std::int32_t vocab_size() const { return model_.vocab_size(); }
  std::int32_t max_rows() const { return model_.options().max_rows; }
  std::int32_t max_positions() const { return model_.max_positions(); }
  const llama_cpp_model& model() const { return model_; }

  //! Makes the output of these layers, from 0, readable after a forward pass.
  //!
  //! Errors      option_error for a layer that the model does not have, for the last one, and for an architecture or a
  //!             version of llama.cpp that gives no states
  void keep_hidden(std::span<const int> layers) {
    for (const int layer : layers) {
      model_.require_states_of(layer);
      if (std::find(hidden_layers_.begin(), hidden_layers_.end(), layer) == hidden_layers_.end())
        hidden_layers_.push_back(layer);
    }
  }
  const std::vector<int>& hidden_layers() const { return hidden_layers_; }

  logits_view forward(llama_cpp_kv& kv, const forward_batch_view& batch) {
    const logits_view logits = kv.pass(batch, hidden_layers_);
    hidden_ = kv.states();
    return logits;
  }

  //! Returns the residual stream of a row of the last batch after `layer`.
  //!
  //! Shapes      [hidden size], valid until the next pass of the same cache
  //! Errors      option_error if keep_hidden() was not asked for the layer; input_error for a row that the last batch
  //!             did not have
  std::span<const float> hidden(int layer, int row) const {
    const auto at = std::find(hidden_layers_.begin(), hidden_layers_.end(), layer) - hidden_layers_.begin();
    if (at == std::ssize(hidden_layers_)) raise<option_error>("the states after layer ", layer, " are not kept.");
    if (row < 0 || row >= hidden_.n_rows || at >= std::ssize(hidden_.of_layer))
      raise<input_error>("the last pass had no row ", row, " with states after layer ", layer, ".");
    const auto width = static_cast<std::size_t>(model_.hidden_size());
    return {hidden_.of_layer[static_cast<std::size_t>(at)] + static_cast<std::size_t>(row) * width, width};
  }

 private:
  llama_cpp_model model_;
  std::vector<int> hidden_layers_;
  llama_cpp_states hidden_;
};

static_assert(Backend<llama_cpp_backend, llama_cpp_kv>);

}  // namespace espalier
