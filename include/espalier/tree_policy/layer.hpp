// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/sampling/top_k.hpp"

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
    nodes_.reserve(static_cast<std::size_t>(budget));
    next_.reserve(static_cast<std::size_t>(budget));
  }

  //! A new tree: the root alone is to be expanded.
  void start() { nodes_.assign(1, root_node); }
  bool empty() const { return nodes_.empty(); }

  //! Keeps the nodes for which keep(u) holds.
  template <class KeepT>
  void filter(const KeepT& keep) {
    std::erase_if(nodes_, [&](node_id u) { return !keep(u); });
  }

  //! One level deeper: asks the drafter about all nodes in one pass and gives each its breadth(u, confidence) most
  //! probable tokens, confidence being the largest probability of its row, until the tree is full.
  //!
  //! Pre         1 <= breadth(u, confidence) <= max_breadth
  template <class TreeT, StepDrafter DrafterT, class BreadthT>
  void expand(TreeT& tree, DrafterT& drafter, const BreadthT& breadth) {
    // Every node adds at least one child: more than are left in the budget need not be asked.
    const auto left = static_cast<std::size_t>(tree.limit() - tree.view().n_draws);
    nodes_.resize((std::min)(nodes_.size(), left));
    next_.clear();
    if (!nodes_.empty()) {
      const auto rows = drafter.propose(tree, std::span<const node_id>(nodes_));
      for (std::size_t i = 0; i < nodes_.size(); ++i)
        add_children(tree, nodes_[i], rows.row(static_cast<std::int32_t>(i)), breadth);
    }
    nodes_.swap(next_);
  }

 private:
  template <class TreeT, class NumberT, class BreadthT>
  void add_children(TreeT& tree, node_id u, std::span<const NumberT> row, const BreadthT& breadth) {
    candidate<NumberT> best[max_breadth];
    if (top_k(row, std::span(best).first(1)) == 0) return;
    const std::int32_t wanted = breadth(u, static_cast<double>(best[0].probability));
    const std::int32_t found = wanted == 1 ? 1 : top_k(row, std::span(best).first(static_cast<std::size_t>(wanted)));
    for (std::int32_t i = 0; i < found; ++i) {
      const node_id child = tree.append(u, best[i].token, std::log(static_cast<float>(best[i].probability)));
      if (child == no_node) return;
      next_.push_back(child);
    }
  }

  std::vector<node_id> nodes_;
  std::vector<node_id> next_;
};

}  // namespace espalier
