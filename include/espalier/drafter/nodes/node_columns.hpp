// SPDX-License-Identifier: BSL-1.0
// Tested by tests/drafter/autoregressive.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/core/require_token.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/drafter/nodes/node_checks.hpp"

namespace espalier {

namespace detail {

// The columns of the nodes that a step drafter is asked about in a round: column c is slot c of the sequence's scratch.
// A node gets the next column when it enters a pass, so its column comes after those of its ancestors.
class node_columns {
 public:
  void reserve(std::int32_t max_nodes) {
    const auto nodes = static_cast<std::size_t>(max_nodes) + 1;
    words_ = mask_words(max_nodes);
    column_of_.resize(nodes, -1);
    renumbered_.resize(nodes);
    token_of_.resize(nodes);
    path_.resize(nodes);
    masks_.resize(nodes * static_cast<std::size_t>(words_));
  }

  static constexpr std::size_t bytes(std::int32_t max_nodes) {
    const auto nodes = static_cast<std::size_t>(max_nodes) + 1;
    return 4 * arena::bytes_of<std::int32_t>(nodes) +
           arena::bytes_of<std::uint32_t>(nodes * static_cast<std::size_t>(mask_words(max_nodes)));
  }

  void clear() {
    std::fill(column_of_.begin(), column_of_.end(), -1);
    size_ = 0;
  }

  std::int32_t size() const { return size_; }

  // Gives the next columns to these nodes. `knows_root`: whether the root was asked about before.
  //
  // Errors      as require_askable() and require_token(); the caller must then give up the round
  void give(tree_view tree, std::span<const node_id> nodes, bool knows_root, std::int32_t vocab_size) {
    for (const node_id u : nodes) {
      require_askable(tree, u, column_of_.size(), [&](node_id v) { return v == root_node ? knows_root : has(v); });
      require_token(tree, u, vocab_size);
      column_of_[static_cast<std::size_t>(u)] = size_++;
    }
  }
  // Frees the columns from `first` on, which these nodes have.
  void take_back(std::span<const node_id> nodes, std::int32_t first) {
    for (const node_id u : nodes)
      column_of_[static_cast<std::size_t>(u)] = -1;
    size_ = first;
  }

  // Adds to a list those nodes of the path to u that have no column and are not in the list yet, the root excepted,
  // each after its parent.
  void find_missing(tree_view tree, node_id u, list<node_id>& nodes) const {
    if (u == root_node || has(u) || std::find(nodes.begin(), nodes.end(), u) != nodes.end()) return;
    find_missing(tree, tree.parent[u], nodes);
    nodes.push_back(u);
  }

  // The column of a node that has one.
  std::int32_t of(node_id u) const { return column_of_[static_cast<std::size_t>(u)]; }

  // Adds to a pass the row of a node that has a column. The row sees the node's path and the sequence's cache rows, the
  // root's included; the root stands at root_position of the text.
  void add_row(forward_batch& batch, tree_view tree, node_id u, std::int32_t root_position, bool has_output) {
    const std::int32_t column = column_of_[static_cast<std::size_t>(u)];
    token_of_[static_cast<std::size_t>(column)] = tree.token[u];
    const mask_row mask = mask_of(column);
    mask.clear();
    if (tree.parent[u] != root_node) mask.include(mask_of(of(tree.parent[u])));
    mask.set(column);
    batch.add_row(tree.token[u], root_position + tree.depth[u], column, has_output).include(mask);
  }

  // The columns of the nodes on the path to `last`, the root excepted, up to the first node that has none.
  //
  // Errors      input_error if a node on the path has another token than when it was asked about
  std::span<const std::int32_t> path(tree_view tree, node_id last) {
    const auto length = static_cast<std::size_t>(tree.depth[last]);
    for (node_id u = last; u != root_node; u = tree.parent[u]) {
      const std::int32_t column = path_[static_cast<std::size_t>(tree.depth[u]) - 1] =
          column_of_[static_cast<std::size_t>(u)];
      if (column >= 0 && token_of_[static_cast<std::size_t>(column)] != tree.token[u]) {
        raise<input_error>("node ", u, " was asked about as token ", token_of_[static_cast<std::size_t>(column)],
                           ", and is token ", tree.token[u],
                           " now: a policy that builds its tree anew says in was() which node was which.");
      }
    }
    std::size_t n = 0;
    while (n < length && path_[n] >= 0)
      ++n;
    return std::span<const std::int32_t>(path_).first(n);
  }

  void renumber(std::span<const node_id> was) { detail::renumber(column_of_, renumbered_, was); }

 private:
  bool has(node_id u) const { return column_of_[static_cast<std::size_t>(u)] >= 0; }
  mask_row mask_of(std::int32_t column) {
    return {masks_.data() + static_cast<std::ptrdiff_t>(column) * words_, words_};
  }

  std::int32_t words_ = 0, size_ = 0;
  list<std::int32_t> column_of_, renumbered_, path_;  // [nodes]
  list<token_id> token_of_;                           // [nodes] by column
  list<std::uint32_t> masks_;                         // [nodes][words] by column: the columns that its node sees
};

}  // namespace detail

}  // namespace espalier
