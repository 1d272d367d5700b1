// SPDX-License-Identifier: BSL-1.0
// Tested by tests/tree_policy/fixed.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/top_k.hpp"

namespace espalier {

//! The deepest level of a tree that grows breadth first: the nodes that are still to be expanded.
//!
//! Complexity  no allocation after construction
class layer {
 public:
  //! Children of one node at most.
  static constexpr std::int32_t max_breadth = 64;

  //! Makes room for a tree of up to `budget` drafted tokens.
  //!
  //! Pre         budget > 0
  explicit layer(std::int32_t budget)
      : nodes_(static_cast<std::size_t>(budget)), next_(static_cast<std::size_t>(budget)) {}

  //! Number of bytes that the lists take of an arena at most.
  static constexpr std::size_t bytes(const static_capacity& c) {
    return 2 * arena::bytes_of<node_id>(static_cast<std::size_t>(c.nodes));
  }

  //! Begins a new tree: only its root is to be expanded.
  void start() {
    nodes_[0] = root_node;
    n_nodes_ = 1;
  }

  //! Keeps the nodes for which keep(u) holds.
  template <class KeepT>
  void filter(const KeepT& keep) {
    const auto end = nodes_.begin() + static_cast<std::ptrdiff_t>(n_nodes_);
    n_nodes_ = static_cast<std::size_t>(std::remove_if(nodes_.begin(), end, [&](node_id u) { return !keep(u); }) -
                                        nodes_.begin());
  }

  //! The nodes to ask about: the level's nodes, but no more than there is room for in the tree, since each adds at
  //! least one child. The others are dropped from the level. Valid until the next call of start(), filter() or
  //! expand().
  template <class TreeT>
  std::span<const node_id> wanted(const TreeT& tree) {
    n_nodes_ = (std::min)(n_nodes_, left(tree));
    return std::span<const node_id>(nodes_).first(n_nodes_);
  }

  //! Grows the tree by one level: each node that was asked about gets the breadth(confidence) most probable tokens of
  //! its row as children, where confidence is the largest probability of the row, until the tree is full.
  //!
  //! Pre         1 <= breadth(confidence) <= max_breadth
  template <class TreeT, class NumberT, class BreadthT>
  void expand(TreeT& tree, const node_rows<NumberT>& rows, const BreadthT& breadth) {
    const std::size_t n = std::exchange(n_nodes_, 0);
    for (std::size_t i = 0; i < n; ++i)
      add_children(tree, nodes_[i], rows, breadth);
    nodes_.swap(next_);
  }

 private:
  template <class TreeT>
  std::size_t left(const TreeT& tree) const {
    return static_cast<std::size_t>(tree.left(static_cast<std::int32_t>(nodes_.size())));
  }

  template <class TreeT, class NumberT, class BreadthT>
  void add_children(TreeT& tree, node_id u, const node_rows<NumberT>& rows, const BreadthT& breadth) {
    candidate<NumberT> best[max_breadth];
    if (top_k(rows, u, std::span(best).first(1)) == 0) return;
    const std::int32_t wanted = breadth(static_cast<wide_number>(best[0].probability));
    const std::int32_t found =
        wanted == 1 ? 1 : top_k(rows, u, std::span(best).first(static_cast<std::size_t>(wanted)));
    for (std::int32_t i = 0; i < found && left(tree) > 0; ++i)
      next_[n_nodes_++] =
          tree.append(u, best[i].token, detail::log_prob_of(static_cast<wide_number>(best[i].probability)));
  }

  // [budget] Both lists are resized, not reserved: a copy of a list keeps its size, but not its capacity.
  detail::list<node_id> nodes_;
  detail::list<node_id> next_;
  std::size_t n_nodes_ = 0;
};

}  // namespace espalier
