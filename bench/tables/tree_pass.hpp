// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/forward_batch.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/forward/prefill.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "model_set.hpp"

namespace bench {

//! Target passes over trees that are tried at the end of a text and not committed.
class tree_pass {
 public:
  //! For trees of at most this many nodes, root included.
  tree_pass(models::model_set& models, int max_nodes)
      : models_(models), kv_(models.make_cache(models.target)), order_(max_nodes) {
    batch_.reserve(max_nodes, max_nodes);
  }

  //! Begins a new text.
  void begin() { kv_.truncate(0, 0); }

  //! Moves the end forward to that of a longer beginning of the text.
  void advance(std::span<const espalier::token_id> text) {
    prefill_.run(models_.target, kv_, 0, text.first(text.size() - 1), 0, [](std::int32_t, std::int32_t) {});
  }

  //! Row u holds the logits after node u; valid until the next pass.
  espalier::vocab_rows<float> forward(espalier::tree_view tree) {
    order_.compute(tree, espalier::node_order::insertion);
    const int prefix = kv_.size(0);
    kv_.append(0, tree.n_nodes);
    batch_.clear();
    batch_.begin_sequence(0, prefix, tree.n_nodes);
    batch_.add_chain(std::span(tree.token, 1), prefix, 1);
    batch_.add_tree(tree, order_, 0);
    const auto logits = models_.target.forward(kv_, batch_.view());
    kv_.truncate(0, prefix);
    return logits;
  }

  //! [n_nodes] the row of each node of the last tree.
  std::span<const std::int32_t> rows() const { return order_.rows(); }

 private:
  models::model_set& models_;
  espalier::recurrent_kv kv_;
  espalier::tree_order order_;
  espalier::forward_batch batch_;
  espalier::prefill prefill_;
};

}  // namespace bench
