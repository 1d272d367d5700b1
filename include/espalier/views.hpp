// SPDX-License-Identifier: BSL-1.0
#pragma once

#if defined(__CUDACC__)
#error "espalier/views.hpp is for host code only: range-v3 does not compile under nvcc. Include it in a .cpp file."
#endif

#include <cstdint>
#include <range/v3/iterator/default_sentinel.hpp>
#include <range/v3/view/facade.hpp>
#include <range/v3/view/filter.hpp>
#include <range/v3/view/iota.hpp>
#include <range/v3/view/transform.hpp>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

//! Views over a tree as ranges of node_id, for host code. They can be combined with the views of range-v3. Each view is
//! lazy, allocates nothing, and is valid as long as the tree_view that it was made from is valid.
//!
//!     for (const node_id u : views::leaves(tree)) show(views::path(tree, u) | ranges::views::transform(text_of));

namespace espalier::views {

//! The parent of a node, the parent's parent, and so on, the root last. Empty for the root itself.
class ancestors : public ::ranges::view_facade<ancestors> {
 public:
  ancestors() = default;
  ancestors(tree_view tree, node_id node) : parent_(tree.parent), node_(tree.parent[node]) {}

 private:
  friend ::ranges::range_access;
  node_id read() const { return node_; }
  bool equal(::ranges::default_sentinel_t) const { return node_ == no_node; }
  bool equal(const ancestors& other) const { return node_ == other.node_; }
  void next() { node_ = parent_[node_]; }

  const node_id* parent_ = nullptr;
  node_id node_ = no_node;
};

//! The children of a node, each once, in the order in which they were first drawn.
//!
//! Complexity  O(draws of the node) for all of them
class children : public ::ranges::view_facade<children> {
 public:
  children() = default;
  children(tree_view tree, node_id node)
      : next_draw_(tree.next_draw), drawn_node_(tree.drawn_node), draw_(tree.first_draw[node]) {}

 private:
  friend ::ranges::range_access;
  node_id read() const { return drawn_node_[draw_]; }
  bool equal(::ranges::default_sentinel_t) const { return draw_ < 0; }
  bool equal(const children& other) const { return draw_ == other.draw_; }
  // A child gets its number at its first draw, so a draw has a new child exactly if that child's number is greater than
  // the numbers of all children that were drawn before it.
  void next() {
    const node_id last = drawn_node_[draw_];
    do {
      draw_ = next_draw_[draw_];
    } while (draw_ >= 0 && drawn_node_[draw_] <= last);
  }

  const std::int32_t* next_draw_ = nullptr;
  const node_id* drawn_node_ = nullptr;
  std::int32_t draw_ = -1;
};

//! All nodes, the root first, parents before children.
inline auto nodes(tree_view tree) {
  return ::ranges::views::iota(root_node, tree.n_nodes);
}

//! The nodes from the root down to the given node, both included.
//!
//! Complexity  O(depth) to read one node
inline auto path(tree_view tree, node_id node) {
  return ::ranges::views::iota(0, tree.depth[node] + 1) |
         ::ranges::views::transform([tree, node](std::int32_t depth) { return tree.ancestor_at(node, depth); });
}

//! The nodes without children; the root is one if it is alone.
inline auto leaves(tree_view tree) {
  return nodes(tree) | ::ranges::views::filter([tree](node_id u) { return tree.is_leaf(u); });
}

//! The nodes of one depth, in order of their numbers.
inline auto at_depth(tree_view tree, std::int32_t depth) {
  return nodes(tree) | ::ranges::views::filter([tree, depth](node_id u) { return tree.depth[u] == depth; });
}

}  // namespace espalier::views
