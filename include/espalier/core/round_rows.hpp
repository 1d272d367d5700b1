// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/decoder.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/forward_batch.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

//! The rows of one text's round in a pass of the target: the tokens that are pending, the last of which is the tree's
//! root, then the other nodes. Given the verdict, kept() tells which of these rows are kept.
//!
//!     rows.add_to(batch, tree, node_order::breadth_first, text.last(1), sequence, prefix);
//!     ... the pass, in which row rows.first_output() + rows.logits_rows()[u] has the logits of node u; the verdict v
//!     for (const std::int32_t k : rows.kept(tree, v.accepted))
//!       keep(rows.first_row() + k, prefix + k);  // a row of the batch, and its cache slot
//!
//! Complexity  O(rows); no allocation after construction
class round_rows {
 public:
  //! Takes memory for trees of up to max_nodes nodes, root included, and for max_rows rows.
  round_rows(std::int32_t max_nodes, std::int32_t max_rows) : order_(max_nodes) {
    kept_.reserve(static_cast<std::size_t>(max_rows));
    in_batch_.reserve(static_cast<std::size_t>(max_rows));
  }

  //! Returns the bytes of an arena that the constructor takes.
  static constexpr std::size_t bytes(std::int32_t max_nodes, std::int32_t max_rows) {
    return tree_order::bytes(max_nodes) + 2 * arena::bytes_of<std::int32_t>(static_cast<std::size_t>(max_rows));
  }

  //! Adds the rows of a round to a batch. The scratch of the sequence begins at slot `prefix`.
  void add_to(forward_batch& batch, tree_view tree, node_order order, std::span<const token_id> pending,
              std::int32_t sequence, std::int32_t prefix) {
    n_pending_ = static_cast<std::int32_t>(pending.size());
    first_row_ = batch.n_rows();
    first_output_ = batch.n_outputs();
    order_.compute(tree, order);
    batch.begin_sequence(sequence, prefix, n_pending_ + tree.n_nodes - 1);
    batch.add_chain(pending, prefix, 1);
    batch.add_tree(tree, order_, n_pending_ - 1);
  }

  std::int32_t n_pending() const { return n_pending_; }
  //! The first row of this round's logits in the pass. logits_rows() [n_nodes] are the rows of the nodes, counted from
  //! first_output().
  std::int32_t first_output() const { return first_output_; }
  std::span<const std::int32_t> logits_rows() const { return order_.rows(); }
  //! Returns the row of a node in the batch.
  std::int32_t row(node_id u) const { return first_row_ + scratch_row(u); }

  //! Returns the scratch rows to commit if the path to this node is accepted: the rows of all pending tokens, root
  //! included, then the rows of the other nodes on the path. Valid until the next call.
  std::span<const std::int32_t> kept(tree_view tree, node_id accepted) {
    kept_.resize(static_cast<std::size_t>(n_pending_ + tree.depth[accepted]));
    for (std::int32_t i = 0; i < n_pending_; ++i)
      kept_[static_cast<std::size_t>(i)] = i;
    for (node_id u = accepted; u != root_node; u = tree.parent[u])
      kept_[static_cast<std::size_t>(n_pending_ - 1 + tree.depth[u])] = scratch_row(u);
    return kept_;
  }

  //! Returns these scratch rows as rows of the batch, in which the first scratch row is `first_row`. Valid until the
  //! next call.
  std::span<const std::int32_t> in_batch(std::span<const std::int32_t> kept, std::int32_t first_row) {
    in_batch_.assign(kept.begin(), kept.end());
    for (std::int32_t& row : in_batch_)
      row += first_row;
    return in_batch_;
  }
  std::int32_t first_row() const { return first_row_; }

 private:
  std::int32_t scratch_row(node_id u) const { return n_pending_ - 1 + logits_rows()[static_cast<std::size_t>(u)]; }

  tree_order order_;
  detail::list<std::int32_t> kept_;
  detail::list<std::int32_t> in_batch_;
  std::int32_t n_pending_ = 0;
  std::int32_t first_row_ = 0;
  std::int32_t first_output_ = 0;
};

}  // namespace espalier
