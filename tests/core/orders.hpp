// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "espalier/core/tree.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/core/tree_order.hpp"

inline constexpr std::array orders{espalier::node_order::insertion, espalier::node_order::breadth_first,
                                   espalier::node_order::depth_first, espalier::node_order::heavy_path};
inline constexpr std::array order_names{"orig", "bfs", "dfs", "hpd"};

// One entry of layout.json. A forest (several -1) hangs below a root of its own, here node 0; else node 0 is its root.
struct layout_tree {
  explicit layout_tree(const nlohmann::json& entry)
      : parents(entry.at("parents").get<std::vector<int>>()),
        shift(std::count(parents.begin(), parents.end(), -1) > 1 ? 1 : 0),
        built(static_cast<int>(parents.size()) - 1 + shift) {
    built.reset(0);
    for (std::size_t i = shift == 1 ? 0 : 1; i < parents.size(); ++i)
      built.append(parents[i] + shift, static_cast<espalier::token_id>(i), 0);
  }
  std::vector<int> parents;
  int shift;
  espalier::tree<> built;
};

// Mask rows as text, '1' where visible, without the first `skipped` rows and columns.
inline std::vector<std::string> mask_text(espalier::tree_view tree, const espalier::tree_order& order, int skipped) {
  const auto words = static_cast<std::size_t>(espalier::mask_words(tree.n_nodes));
  std::vector<std::uint32_t> mask(words * static_cast<std::size_t>(tree.n_nodes), 0xDEADBEEFU);
  espalier::write_tree_mask(tree, order, mask);
  std::vector<std::string> out;
  for (int i = skipped; i < tree.n_nodes; ++i) {
    out.emplace_back();
    for (int j = skipped; j < tree.n_nodes; ++j) {
      const std::uint32_t word = mask[static_cast<std::size_t>(i) * words + static_cast<std::size_t>(j / 32)];
      out.back() += (word >> (j % 32) & 1U) != 0 ? '1' : '0';
    }
  }
  return out;
}
