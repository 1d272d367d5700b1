// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/forward_batch.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

//! The target's pass of a round: the tokens that are pending, the last of which is the tree's root, then the other
//! nodes.
//!
//! Complexity  O(rows); no allocation after construction
class round_batch {
 public:
  //! For trees of up to so many nodes, root included, and so many rows.
  round_batch(std::int32_t max_nodes, std::int32_t max_rows) : order_(max_nodes) {
    batch_.reserve(max_rows, max_rows);
    kept_.reserve(static_cast<std::size_t>(max_rows));
  }

  //! Of a sequence with `prefix` committed rows.
  void compile(tree_view tree, node_order order, std::span<const token_id> pending, std::int32_t sequence,
               std::int32_t prefix) {
    prefix_ = prefix;
    n_pending_ = static_cast<std::int32_t>(pending.size());
    order_.compute(tree, order);
    batch_.clear();
    batch_.begin_sequence(sequence, prefix, n_pending_ + tree.n_nodes - 1);
    batch_.add_chain(pending, prefix, 1);
    batch_.add_tree(tree, order_, n_pending_ - 1);
  }

  forward_batch_view view() const { return batch_.view(); }
  //! Place in the text of the first row's token.
  std::int32_t prefix() const { return prefix_; }
  //! [n_nodes] The rows of logits: one for each node.
  std::span<const std::int32_t> logits_rows() const { return order_.rows(); }
  //! The row of a node in the batch.
  std::int32_t row(node_id u) const { return n_pending_ - 1 + logits_rows()[static_cast<std::size_t>(u)]; }

  //! The rows that are committed where the path to this node is accepted: all that were pending, then those of the
  //! path. Valid until the next call.
  std::span<const std::int32_t> kept(tree_view tree, node_id accepted) {
    kept_.resize(static_cast<std::size_t>(n_pending_ + tree.depth[accepted]));
    for (std::int32_t i = 0; i < n_pending_; ++i)
      kept_[static_cast<std::size_t>(i)] = i;
    for (node_id u = accepted; u != root_node; u = tree.parent[u])
      kept_[static_cast<std::size_t>(n_pending_ - 1 + tree.depth[u])] = row(u);
    return kept_;
  }

 private:
  tree_order order_;
  forward_batch batch_;
  std::vector<std::int32_t> kept_;
  std::int32_t prefix_ = 0;
  std::int32_t n_pending_ = 0;
};

}  // namespace espalier
