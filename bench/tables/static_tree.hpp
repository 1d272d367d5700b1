// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

#include "espalier/tree_policy/delayed.hpp"

namespace bench {

//! A tree of the same shape every round: K paths of L2 tokens from the end of a trunk of L1 tokens.
using static_tree = espalier::delayed_options;

inline constexpr int most_paths = 4;
inline constexpr int most_trunk = 8;
inline constexpr int most_length = 8;

//! Every tree that the benchmark tries. A single path of more than 8 tokens counts as a trunk and a path.
//!
//! Source      Delayed tree expansion, 4.2 (K in 1 .. 4, L in 0 .. 8) and 6 (L1 and L2 in 0 .. 8)
inline std::vector<static_tree> all_static_trees() {
  std::vector<static_tree> trees;
  for (int length = 0; length <= most_trunk + most_length; ++length) {
    const int path = std::min(length, most_length);
    trees.push_back({.paths = 1, .trunk = length - path, .length = path});
  }
  for (int paths = 2; paths <= most_paths; ++paths) {
    for (int trunk = 0; trunk <= most_trunk; ++trunk) {
      for (int length = 1; length <= most_length; ++length)
        trees.push_back({.paths = paths, .trunk = trunk, .length = length});
    }
  }
  return trees;
}

//! Index in the list of the tree of this shape.
inline std::size_t place_of(const std::vector<static_tree>& trees, const static_tree& tree) {
  return static_cast<std::size_t>(std::find_if(trees.begin(), trees.end(),
                                               [&](const static_tree& t) {
                                                 return t.paths == tree.paths && t.trunk == tree.trunk &&
                                                        t.length == tree.length;
                                               }) -
                                  trees.begin());
}

//! The shape in words: K, then L or L1+L2.
inline std::string in_words(const static_tree& t) {
  return t.trunk == 0 || t.paths == 1 ? fmt::format("{}, {}", t.paths, t.trunk + t.length)
                                      : fmt::format("{}, {}+{}", t.paths, t.trunk, t.length);
}

}  // namespace bench
