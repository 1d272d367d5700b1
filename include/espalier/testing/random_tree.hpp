// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "espalier/core/tree.hpp"

namespace espalier::testing {

//! A random tree in which siblings have different tokens. With `lean` 0 the parent of a node is any node before it; a
//! higher `lean`, below 1, takes the parent from the latest nodes, and so makes deeper trees.
inline tree<> random_tree(std::int32_t n_nodes, std::uint32_t seed, std::int32_t vocab = 50, double lean = 0) {
  std::mt19937 random(seed);
  tree<> tree(n_nodes - 1);
  tree.reset(static_cast<token_id>(random() % static_cast<unsigned>(vocab)));
  while (!tree.full()) {
    const auto last = static_cast<unsigned>(tree.size() - 1);
    const auto span = (std::max)(1U, static_cast<unsigned>((last + 1) * (1 - lean)));
    const auto parent = static_cast<node_id>(last - random() % span);
    const auto token = static_cast<token_id>(random() % static_cast<unsigned>(vocab));
    if (tree.view().find_child(parent, token) != no_node) continue;
    tree.append(parent, token, -static_cast<float>(random() % 1000) / 250.0F);
  }
  return tree;
}

//! The nodes on the path from the root to u, both included.
inline std::vector<node_id> path_to(tree_view tree, node_id u) {
  std::vector<node_id> path;
  for (; u != no_node; u = tree.parent[u])
    path.insert(path.begin(), u);
  return path;
}

}  // namespace espalier::testing
