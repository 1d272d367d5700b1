// SPDX-License-Identifier: BSL-1.0
// Tested by tests/tree_policy/best_first.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/token.hpp"

namespace espalier {

//! A token that may become a node of the tree.
struct considered_node {
  token_id token = 0;
  float log_prob = 0;
  node_id parent = root_node;  //!< the parent's number while the tree grows
  node_id node = no_node;      //!< its own number in the growing tree, if it was asked about
};

//! The nodes that a policy asks about before it knows which of them it keeps. They are nodes of the tree while it
//! grows; then the tree is built anew from the nodes that are kept.
//!
//! Complexity  no allocation after construction
class asked_nodes {
 public:
  //! Makes room for `level` nodes asked about in one level, `all` nodes asked about in all levels together, and `kept`
  //! nodes in the end, the root not counted.
  asked_nodes(std::int32_t level, std::int32_t all, std::int32_t kept)
      : level_(static_cast<std::size_t>(level) + 1),
        now_(static_cast<std::size_t>(all) + 1),
        was_(static_cast<std::size_t>(kept) + 1) {}

  //! Begins with the root as the first level.
  void start() {
    level_[0] = root_node;
    n_level_ = 1;
    n_rebuilt_ = 0;
  }

  //! Begins the next level.
  void next_level() { n_level_ = 0; }

  //! Appends a node to the tree and to the level, and sets c.node to its number. If there is no room for the node, it
  //! is not added, and c.node stays no_node.
  //!
  //! Pre         its parent was asked about
  template <class TreeT>
  void add(TreeT& tree, considered_node& c) {
    if (n_level_ == level_.size() || static_cast<std::size_t>(tree.size()) == now_.size()) return;
    c.node = tree.append(c.parent, c.token, c.log_prob);
    if (c.node != no_node) level_[n_level_++] = c.node;
  }

  //! The nodes of the level, in order.
  std::span<const node_id> level() const { return std::span(level_).first(n_level_); }

  //! Makes the tree consist of its root and these nodes, in this order.
  //!
  //! Pre         parents come before their children; `kept` has no more nodes than the tree's limit
  template <class TreeT, class RangeT>
  void rebuild(TreeT& tree, RangeT&& kept) {
    tree.reset(tree.view().token[root_node], tree.limit());
    now_[0] = was_[0] = root_node;
    for (const considered_node& c : kept) {
      const node_id node = tree.append(now_[static_cast<std::size_t>(c.parent)], c.token, c.log_prob);
      was_[static_cast<std::size_t>(node)] = c.node;
      if (c.node != no_node) now_[static_cast<std::size_t>(c.node)] = node;
    }
    n_rebuilt_ = static_cast<std::size_t>(tree.size());
  }

  //! For each node of the rebuilt tree, the number that it had in the growing tree; no_node if it was not in that tree.
  //! Empty from start() until rebuild().
  std::span<const node_id> was() const { return std::span(was_).first(n_rebuilt_); }

 private:
  std::vector<node_id> level_;
  std::size_t n_level_ = 0;
  std::vector<node_id> now_;  // [all + 1] number of each node in the rebuilt tree
  std::vector<node_id> was_;  // [kept + 1] number of each node before the tree was rebuilt
  std::size_t n_rebuilt_ = 0;
};

}  // namespace espalier
