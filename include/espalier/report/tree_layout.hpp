// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/views.hpp"

namespace espalier {

//! Places the nodes of a tree on a grid: a column for each depth, the first child of a node on its parent's row, every
//! other subtree as far up as it fits. Lines from parents to children then never cross.
//!
//! Complexity  O(n_nodes * depth)
//! Law         no two nodes share a place; within a column, rows ascend in the order of a walk that visits children in
//!             turn
class tree_layout {
 public:
  //! Lays out a tree. If extra_parent is a node, it gets one more child behind its own, which counts as node n_nodes.
  explicit tree_layout(tree_view tree, node_id extra_parent = no_node)
      : tree_(tree), extra_parent_(extra_parent), rows_(static_cast<std::size_t>(tree.n_nodes) + 1, 0) {
    place(root_node, 0);
  }

  std::int32_t row(node_id u) const { return rows_[static_cast<std::size_t>(u)]; }
  std::int32_t column(node_id u) const { return u == tree_.n_nodes ? tree_.depth[extra_parent_] + 1 : tree_.depth[u]; }
  std::int32_t n_rows() const { return *std::max_element(free_.begin(), free_.end()); }
  std::int32_t n_columns() const { return static_cast<std::int32_t>(free_.size()); }

 private:
  // Places a node in row `least` or below, in the first free row of its column, and if necessary lower, in the row of
  // its first child. Returns the row.
  std::int32_t place(node_id u, std::int32_t least) {
    const auto column = static_cast<std::size_t>(this->column(u));
    if (column == free_.size()) free_.push_back(0);
    std::int32_t row = (std::max)(least, free_[column]);
    bool first = true;
    const auto place_child = [&](node_id child) {
      const std::int32_t child_row = place(child, row);
      if (first) row = child_row;
      first = false;
    };
    if (u != tree_.n_nodes) {
      for (const node_id child : views::children(tree_, u))
        place_child(child);
      if (u == extra_parent_) place_child(tree_.n_nodes);
    }
    rows_[static_cast<std::size_t>(u)] = row;
    free_[column] = row + 1;
    return row;
  }

  tree_view tree_;
  node_id extra_parent_;
  std::vector<std::int32_t> rows_;  // [n_nodes + 1]
  std::vector<std::int32_t> free_;  // the first free row of each column
};

}  // namespace espalier
