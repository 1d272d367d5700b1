// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/sampling/top_k.hpp"
#include "espalier/tree_policy/log_prob.hpp"

namespace espalier {

//! The deepest level of a tree that grows breadth first: the nodes that are still to be expanded.
//!
//! Complexity  no allocation after construction
//! Errors      option_error for a budget outside 2 to 65536
class layer {
 public:
  //! Children of one node at most.
  static constexpr std::int32_t max_breadth = 64;

  //! Budget in drafted tokens.
  explicit layer(std::int32_t budget) {
    require_option("budget", budget, 2, 65536);
    nodes_.resize(static_cast<std::size_t>(budget));
    next_.resize(static_cast<std::size_t>(budget));
  }

  //! A new tree: the root alone is to be expanded.
  void start() {
    nodes_[0] = root_node;
    n_nodes_ = 1;
  }
  bool empty() const { return n_nodes_ == 0; }

  //! Keeps the nodes for which keep(u) holds.
  template <class KeepT>
  void filter(const KeepT& keep) {
    const auto end = nodes_.begin() + static_cast<std::ptrdiff_t>(n_nodes_);
    n_nodes_ = static_cast<std::size_t>(std::remove_if(nodes_.begin(), end, [&](node_id u) { return !keep(u); }) -
                                        nodes_.begin());
  }

  //! One level deeper: asks the drafter about all nodes in one pass and gives each its breadth(u, confidence) most
  //! probable tokens, confidence being the largest probability of its row, until the tree is full.
  //!
  //! Pre         1 <= breadth(u, confidence) <= max_breadth
  template <class TreeT, StepDrafter DrafterT, class BreadthT>
  void expand(TreeT& tree, DrafterT& drafter, const BreadthT& breadth) {
    // Every node adds at least one child: more than are left in the budget need not be asked.
    const std::size_t n = (std::min)(n_nodes_, left(tree));
    n_nodes_ = 0;
    if (n == 0) return;
    const auto rows = drafter.propose(tree, std::span<const node_id>(nodes_).first(n));
    for (std::size_t i = 0; i < n; ++i)
      add_children(tree, nodes_[i], rows.row(static_cast<std::int32_t>(i)), breadth);
    nodes_.swap(next_);
  }

 private:
  template <class TreeT>
  std::size_t left(const TreeT& tree) const {
    const auto limit = (std::min)(static_cast<std::size_t>(tree.limit()), nodes_.size());
    const auto drawn = static_cast<std::size_t>(tree.view().n_draws);
    return drawn < limit ? limit - drawn : 0;
  }

  template <class TreeT, class NumberT, class BreadthT>
  void add_children(TreeT& tree, node_id u, std::span<const NumberT> row, const BreadthT& breadth) {
    candidate<NumberT> best[max_breadth];
    if (top_k(row, std::span(best).first(1)) == 0) return;
    const std::int32_t wanted = breadth(u, static_cast<double>(best[0].probability));
    const std::int32_t found = wanted == 1 ? 1 : top_k(row, std::span(best).first(static_cast<std::size_t>(wanted)));
    for (std::int32_t i = 0; i < found && left(tree) > 0; ++i)
      next_[n_nodes_++] = tree.append(u, best[i].token, detail::log_prob_of(static_cast<double>(best[i].probability)));
  }

  std::vector<node_id> nodes_;  // [budget], so that a copy needs no more room either
  std::vector<node_id> next_;
  std::size_t n_nodes_ = 0;
};

}  // namespace espalier
