// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"

// Draws without replacement, breadth[d] children for each node of depth d as far as its row gives them. With
// `adaptive`, a node gets its second draw only if its first was less likely than one half: the next draw may depend on
// everything drawn before it. With `beyond`, draws go on after all that the row can give, uniformly over the other
// tokens, as Sequoia's do.
struct distinct_draws {
  static constexpr espalier::regime sampling = espalier::regime::without_replacement;

  std::vector<int> breadth;
  bool adaptive = false;
  bool beyond = false;

  std::int32_t max_nodes() const {
    std::int32_t nodes = 1, all = 0;
    for (const int b : breadth)
      all += nodes *= b;
    return all;
  }

  std::vector<espalier::node_id> level{};
  std::size_t depth = 0;

  template <class TreeT>
  std::span<const espalier::node_id> begin(TreeT& tree) {
    depth = 0;
    level.assign(1, espalier::root_node);
    return wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const espalier::node_id> take(TreeT& tree, const espalier::node_rows<NumberT>& rows, ChanceT& chance) {
    std::vector<espalier::node_id> next;
    for (const espalier::node_id u : level) {
      const auto row = rows.row(u);
      std::vector<double> left(row.begin(), row.end());
      for (std::int32_t k = 0; k < breadth[depth] && !tree.full(); ++k) {
        if (beyond && *std::max_element(left.begin(), left.end()) == 0) {
          for (std::size_t x = 0; x < left.size(); ++x)
            left[x] = row[x] > 0 || tree.view().find_child(u, static_cast<espalier::token_id>(x)) >= 0 ? 0 : 1;
        }
        const espalier::token_id t = chance.pick(std::span<const double>(left), {u, k, espalier::purpose::draft});
        if (t < 0) break;
        const auto x = static_cast<std::size_t>(t);
        next.push_back(tree.append(u, t, static_cast<float>(std::log(static_cast<double>(row[x])))));
        left[x] = 0;
        if (adaptive && static_cast<double>(row[x]) >= 0.5) break;
      }
    }
    level = next;
    ++depth;
    return wanted(tree);
  }

  template <class TreeT>
  std::span<const espalier::node_id> wanted(const TreeT& tree) const {
    if (tree.full() || depth == breadth.size()) return {};
    return level;
  }

  void observe(espalier::tree_view, espalier::verdict) const {}
};
