// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/core/forward_batch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/random_tree.hpp"

// Trees of several sequences as a forward batch, and the parents that conversions should lead back to.
struct tree_batch {
  espalier::forward_batch batch;
  std::vector<espalier::tree<>> trees;
  std::vector<std::int32_t> prefixes;
  std::vector<std::vector<espalier::node_id>> parents;  // of each sequence, row -> row of the parent

  void add(const espalier::tree<>& tree, espalier::node_order order, std::int32_t prefix) {
    const espalier::tree_view view = tree;
    espalier::tree_order rows(view.n_nodes);
    rows.compute(view, order);
    batch.begin_sequence(static_cast<std::int32_t>(trees.size()), prefix, view.n_nodes);
    batch.add_chain({view.token, 1}, prefix, 1);
    batch.add_tree(view, rows, 0);
    parents.emplace_back();
    for (const espalier::node_id u : rows.nodes())
      parents.back().push_back(u == 0 ? -1 : rows.rows()[static_cast<std::size_t>(view.parent[u])]);
    trees.push_back(tree);
    prefixes.push_back(prefix);
  }

  espalier::forward_batch_view view() const { return batch.view(); }
  std::int32_t rows(std::size_t sequence) const { return static_cast<std::int32_t>(parents[sequence].size()); }
  std::size_t size() const { return trees.size(); }
};

inline espalier::tree<> tree_of(const std::vector<espalier::node_id>& parents) {
  espalier::tree<> tree(static_cast<int>(parents.size()) - 1);
  tree.reset(100);
  for (std::size_t u = 1; u < parents.size(); ++u)
    tree.append(parents[u], static_cast<espalier::token_id>(100 + u), -1);
  return tree;
}

// One to four sequences of up to `max_nodes` nodes.
inline tree_batch random_batch(std::uint32_t seed, int max_nodes, espalier::node_order order) {
  tree_batch b;
  for (std::uint32_t s = 0; s <= seed % 4; ++s) {
    const int n = static_cast<int>((seed * 37 + s * 11) % static_cast<std::uint32_t>(max_nodes)) + 1;
    b.add(espalier::testing::random_tree(n, 10 * seed + s, 2000, s % 2 == 0 ? 0.3 : 0.8), order,
          static_cast<std::int32_t>((seed * 13 + s * 29) % 50));
  }
  return b;
}

inline constexpr espalier::node_order all_orders[] = {
    espalier::node_order::insertion, espalier::node_order::breadth_first, espalier::node_order::depth_first,
    espalier::node_order::heavy_path};

// Breadth first: the root, two children, two children of the first and one of the second.
inline tree_batch small_batch(std::int32_t prefix) {
  tree_batch b;
  b.add(tree_of({-1, 0, 0, 1, 1, 2}), espalier::node_order::breadth_first, prefix);
  return b;
}
