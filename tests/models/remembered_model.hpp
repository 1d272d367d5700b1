// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/forward_batch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/model/llama/llama_backend.hpp"

namespace models {

using espalier::token_id;

//! A model from its folder, for thousands of texts that begin with the same prompt. A backend that computes each row
//! once: what it has not seen yet, of a pass, it computes in one tree pass of the model, whose cache keeps the prompt.
//!
//! Law         the rows are the model's, by the law of Backend: a row does not depend on the batch it is in
//! Pre         every text begins with the prompt
class remembered_model {
 public:
  remembered_model(const std::string& folder, std::span<const token_id> prompt)
      : model_(espalier::llama_backend::load(
            folder, {.threads = 1, .max_rows = most_rows, .weights = espalier::weight_storage::f32})),
        kv_(model_.config().n_layers, model_.config().kv_size(), 1, static_cast<int>(prompt.size()) + most_rows),
        prompt_size_(prompt.size()),
        unknown_(most_rows - 1),
        order_(most_rows) {
    espalier::prefill prefill;
    prefill.run(model_, kv_, 0, prompt.first(prompt.size() - 1), 0, [](std::int32_t, std::int32_t) {});
    unknown_.reset(prompt.back());
    compute();
  }

  std::int32_t vocab_size() const { return model_.vocab_size(); }
  std::size_t n_rows() const { return rows_.size(); }

  //! The logits after the prompt and these tokens.
  std::span<const float> row(const std::vector<token_id>& text) {
    if (!rows_.contains(text)) {
      unknown_.reset(unknown_.view().token[0]);
      want(text);
      compute();
    }
    return rows_.at(text);
  }

  espalier::logits_view forward(espalier::token_kv& kv, espalier::forward_batch_view batch) {
    const espalier::batch_sequence& s = batch.sequences[0];
    for (std::size_t r = 0; r < batch.tokens.size(); ++r)
      kv.token(s.sequence, batch.slots[r]) = batch.tokens[r];
    texts_.resize(batch.outputs.size());
    unknown_.reset(unknown_.view().token[0]);
    for (std::size_t i = 0; i < texts_.size(); ++i) {
      read(kv, s, batch.mask_of(s, batch.outputs[i]), texts_[i]);
      if (!rows_.contains(texts_[i])) want(texts_[i]);
    }
    if (unknown_.size() > 1) compute();
    logits_.clear();
    for (const std::vector<token_id>& text : texts_) {
      const std::vector<float>& row = rows_.at(text);
      logits_.insert(logits_.end(), row.begin(), row.end());
    }
    return {logits_.data(), static_cast<std::int32_t>(texts_.size()), vocab_size()};
  }

 private:
  static constexpr int most_rows = 64;

  // What a batch row sees beyond the prompt.
  void read(espalier::token_kv& kv, const espalier::batch_sequence& s, std::span<const std::uint32_t> mask,
            std::vector<token_id>& text) const {
    text.clear();
    auto place = static_cast<std::int32_t>(prompt_size_);
    for (; place < s.prefix; ++place)
      text.push_back(kv.token(s.sequence, place));
    for (std::int32_t seen = s.prefix, j = 0; j < 32 * s.mask_words; ++j) {
      if ((mask[static_cast<std::size_t>(j / 32)] >> (j % 32) & 1U) == 0) continue;
      if (seen++ >= place) text.push_back(kv.token(s.sequence, s.prefix + j));
    }
  }

  void want(const std::vector<token_id>& text) {
    espalier::node_id u = espalier::root_node;
    for (const token_id token : text)
      u = unknown_.draw(u, token, 0);
  }

  // The rows of all nodes of `unknown_`, in one pass.
  void compute() {
    const espalier::tree_view tree = unknown_;
    order_.compute(tree, espalier::node_order::insertion);
    const auto prefix = static_cast<std::int32_t>(prompt_size_) - 1;
    kv_.append(0, tree.n_nodes);
    batch_.clear();
    batch_.begin_sequence(0, prefix, tree.n_nodes);
    batch_.add_chain({tree.token, 1}, prefix, 1);
    batch_.add_tree(tree, order_, 0);
    const espalier::logits_view logits = model_.forward(kv_, batch_.view());
    kv_.truncate(0, prefix);
    std::vector<token_id> text;
    for (espalier::node_id u = 0; u < tree.n_nodes; ++u) {
      text.clear();
      for (espalier::node_id a = u; a != espalier::root_node; a = tree.parent[a])
        text.insert(text.begin(), tree.token[a]);
      const auto row = logits.row(order_.rows()[static_cast<std::size_t>(u)]);
      rows_.try_emplace(text, row.begin(), row.end());
    }
  }

  espalier::llama_backend model_;
  espalier::contiguous_kv kv_;
  std::size_t prompt_size_;
  espalier::tree<> unknown_;
  espalier::tree_order order_;
  espalier::forward_batch batch_;
  std::map<std::vector<token_id>, std::vector<float>> rows_;  // by what follows the prompt
  std::vector<std::vector<token_id>> texts_;
  std::vector<float> logits_;
};

}  // namespace models
