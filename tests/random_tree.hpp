// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "espalier/core/tree.hpp"

// A random recursive tree: the parent of each node is any node before it. `lean` > 0 prefers late parents, so deep trees.
inline espalier::tree<> random_tree(int n_nodes, std::uint32_t seed, int vocab = 50, double lean = 0) {
  std::mt19937 random(seed);
  espalier::tree<> tree(n_nodes - 1);
  tree.reset(static_cast<espalier::token_id>(random() % static_cast<unsigned>(vocab)));
  while (!tree.full()) {
    const auto last = static_cast<unsigned>(tree.size() - 1);
    const auto span = std::max(1U, static_cast<unsigned>((last + 1) * (1 - lean)));
    const auto parent = static_cast<espalier::node_id>(last - random() % span);
    const auto token = static_cast<espalier::token_id>(random() % static_cast<unsigned>(vocab));
    if (tree.view().find_child(parent, token) != espalier::no_node) continue;
    tree.append(parent, token, -static_cast<float>(random() % 1000) / 250.0F);
  }
  return tree;
}

// The nodes from the root to u, found by parents alone.
inline std::vector<espalier::node_id> path_to(espalier::tree_view tree, espalier::node_id u) {
  std::vector<espalier::node_id> path;
  for (; u != espalier::no_node; u = tree.parent[u])
    path.insert(path.begin(), u);
  return path;
}
