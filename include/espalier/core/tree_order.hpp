// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

//! The order in which the nodes of a tree become rows of the forward pass.
enum class node_order {
  insertion,      //!< in the order in which the nodes were drafted
  breadth_first,  //!< level by level; siblings together, in the order of their parents
  depth_first,    //!< preorder: a node, then the subtree of each of its children, by index
  heavy_path,     //!< preorder, but the larger subtree first; ties by index
};

template <>
inline constexpr auto known_values<node_order> =
    std::array{known_value<node_order>{node_order::insertion, "insertion", "as drafted"},
               known_value<node_order>{node_order::breadth_first, "breadth-first", "level by level"},
               known_value<node_order>{node_order::depth_first, "depth-first", "path by path"},
               known_value<node_order>{node_order::heavy_path, "heavy-path", "path by path, larger subtree first"}};

//! A permutation of the nodes of one tree in which every node comes after its parent.
//!
//! Complexity  compute: O(n_nodes), no allocation
//! Law         nodes()[rows()[u]] == u; rows()[parent(u)] < rows()[u]; the root is row 0
//! Source      Xiong et al., DySpec, appendix C (depth first, heavy path)
class tree_order {
 public:
  //! Makes room for trees of up to `capacity` nodes, root included.
  explicit tree_order(int capacity)
      : nodes_(at(capacity)),
        rows_(at(capacity)),
        head_(at(capacity)),
        tail_(at(capacity)),
        next_(at(capacity)),
        size_(at(capacity)),
        by_size_(at(capacity)),
        count_(at(capacity) + 1) {}

  //! Number of bytes that the constructor takes of an arena.
  static constexpr std::size_t bytes(std::int32_t capacity) {
    return 7 * arena::bytes_of<std::int32_t>(at(capacity)) + arena::bytes_of<std::int32_t>(at(capacity) + 1);
  }

  //! Computes the order of the nodes of a tree.
  //!
  //! Errors      input_error for a tree of more nodes than the constructor made room for, or of none
  void compute(tree_view tree, node_order order) {
    const auto room = static_cast<std::int32_t>(nodes_.size());
    if (tree.n_nodes < 1 || tree.n_nodes > room)
      raise<input_error>("a tree of ", tree.n_nodes, " nodes does not fit an order of 1 to ", room, " nodes.");
    n_ = tree.n_nodes;
    switch (order) {
      case node_order::insertion:
        for (node_id u = 0; u < n_; ++u)
          nodes_[at(u)] = u;
        break;
      case node_order::breadth_first:
        link_by_index(tree);
        breadth_first();
        break;
      case node_order::depth_first:
        measure(tree);
        link_by_index(tree);
        preorder();
        break;
      case node_order::heavy_path:
        measure(tree);
        link_by_size(tree);
        preorder();
        break;
    }
    for (std::int32_t row = 0; row < n_; ++row)
      rows_[at(nodes_[at(row)])] = row;
  }

  //! The node of each row: [n_nodes]. Valid until the next compute().
  std::span<const node_id> nodes() const { return {nodes_.data(), at(n_)}; }
  //! The row of each node: [n_nodes]. Valid until the next compute().
  std::span<const std::int32_t> rows() const { return {rows_.data(), at(n_)}; }

 private:
  static constexpr std::size_t at(std::int32_t i) { return static_cast<std::size_t>(i); }

  // Counts the nodes of each subtree, its top included, into size_.
  void measure(tree_view tree) {
    for (node_id u = 0; u < n_; ++u)
      size_[at(u)] = 1;
    for (node_id u = n_ - 1; u > 0; --u)
      size_[at(tree.parent[u])] += size_[at(u)];
  }

  void clear_links() {
    for (node_id u = 0; u < n_; ++u)
      head_[at(u)] = tail_[at(u)] = next_[at(u)] = no_node;
  }

  void link(node_id parent, node_id child) {
    (tail_[at(parent)] == no_node ? head_[at(parent)] : next_[at(tail_[at(parent)])]) = child;
    tail_[at(parent)] = child;
  }

  void link_by_index(tree_view tree) {
    clear_links();
    for (node_id u = 1; u < n_; ++u)
      link(tree.parent[u], u);
  }

  // Links the children of each node, larger subtree first. One stable counting sort of all nodes by falling size does
  // this for all parents.
  void link_by_size(tree_view tree) {
    clear_links();
    for (std::int32_t s = 0; s <= n_; ++s)
      count_[at(s)] = 0;
    for (node_id u = 0; u < n_; ++u)
      ++count_[at(n_ - size_[at(u)] + 1)];
    for (std::int32_t s = 1; s <= n_; ++s)
      count_[at(s)] += count_[at(s - 1)];
    for (node_id u = 0; u < n_; ++u)
      by_size_[at(count_[at(n_ - size_[at(u)])]++)] = u;
    for (std::int32_t i = 0; i < n_; ++i) {
      if (const node_id u = by_size_[at(i)]; u != root_node) link(tree.parent[u], u);
    }
  }

  void breadth_first() {
    std::int32_t end = 0;
    nodes_[at(end++)] = root_node;
    for (std::int32_t begin = 0; begin < end; ++begin) {
      for (node_id c = head_[at(nodes_[at(begin)])]; c != no_node; c = next_[at(c)])
        nodes_[at(end++)] = c;
    }
  }

  // Numbers the rows in preorder. A node's row is its parent's, plus one, plus the sizes of the subtrees of the
  // siblings before it.
  void preorder() {
    rows_[0] = 0;
    for (node_id u = 0; u < n_; ++u) {
      std::int32_t row = rows_[at(u)];
      nodes_[at(row++)] = u;
      for (node_id c = head_[at(u)]; c != no_node; c = next_[at(c)]) {
        rows_[at(c)] = row;
        row += size_[at(c)];
      }
    }
  }

  std::int32_t n_ = 0;
  detail::list<node_id> nodes_;
  detail::list<std::int32_t> rows_;
  detail::list<node_id> head_, tail_, next_;
  detail::list<std::int32_t> size_;
  detail::list<node_id> by_size_;
  detail::list<std::int32_t> count_;
};

}  // namespace espalier
