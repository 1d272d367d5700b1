// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <utility>

#include "espalier/concepts/backend.hpp"
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

  logits_view forward(llama_cpp_kv& kv, const forward_batch_view& batch) { return kv.pass(batch); }

 private:
  llama_cpp_model model_;
};

static_assert(Backend<llama_cpp_backend, llama_cpp_kv>);

}  // namespace espalier
