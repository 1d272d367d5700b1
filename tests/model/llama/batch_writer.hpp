// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "espalier/core/forward_batch.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_mask.hpp"

//! Batches for tests of backends.
namespace llama_driver {

//! Adds a chain in which every row asks for logits.
inline void add_whole_chain(espalier::forward_batch& batch, std::span<const espalier::token_id> tokens, int position) {
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto column = static_cast<std::int32_t>(i);
    batch.add_row(tokens[i], position + column, column, true).include_first(column);
  }
}

struct tree {
  std::vector<espalier::token_id> tokens;
  std::vector<int> parents;  //!< -1 for the root; parents come first

  std::vector<int> path_to(int node) const {
    std::vector<int> path;
    for (; node >= 0; node = parents[static_cast<std::size_t>(node)])
      path.insert(path.begin(), node);
    return path;
  }
  std::vector<espalier::token_id> tokens_to(int node) const {
    std::vector<espalier::token_id> found;
    for (const int u : path_to(node))
      found.push_back(tokens[static_cast<std::size_t>(u)]);
    return found;
  }
};

inline tree random_tree(std::mt19937& random, int n_nodes, int vocab) {
  tree t;
  for (int u = 0; u < n_nodes; ++u) {
    t.tokens.push_back(static_cast<int>(random() % static_cast<unsigned>(vocab)));
    t.parents.push_back(u == 0 ? -1 : static_cast<int>(random() % static_cast<unsigned>(u)));
  }
  return t;
}

//! Adds the nodes of a tree in scratch slots 0, 1, ...
inline void add_tree(espalier::forward_batch& batch, const tree& t, int position) {
  for (int u = 0; u < static_cast<int>(t.tokens.size()); ++u) {
    const std::vector<int> path = t.path_to(u);
    const espalier::mask_row mask =
        batch.add_row(t.tokens[static_cast<std::size_t>(u)], position + static_cast<int>(path.size()) - 1, u, true);
    for (const int ancestor : path)
      mask.set(ancestor);
  }
}

inline std::vector<espalier::token_id> random_tokens(std::mt19937& random, int n, int vocab) {
  std::vector<espalier::token_id> tokens(static_cast<std::size_t>(n));
  for (espalier::token_id& token : tokens)
    token = static_cast<int>(random() % static_cast<unsigned>(vocab));
  return tokens;
}

}  // namespace llama_driver
