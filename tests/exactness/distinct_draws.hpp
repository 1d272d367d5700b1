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

// Draws without replacement, breadth[d] children for each node of depth d as far as its row gives them. With `adaptive`, a node
// gets its second draw only if its first was less likely than one half: the next draw may depend on everything drawn before it.
// With `beyond`, draws go on after all that the row can give, uniformly over the other tokens, as Sequoia's do.
struct distinct_draws {
  static constexpr espalier::regime sampling = espalier::regime::without_replacement;

  std::vector<int> breadth;
  bool adaptive = false;
  bool beyond = false;

  std::int32_t max_nodes() const {
    std::int32_t level = 1, all = 0;
    for (const int b : breadth)
      all += level *= b;
    return all;
  }

  template <class TreeT, espalier::StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    std::vector<espalier::node_id> level{espalier::root_node}, next;
    for (const int b : breadth) {
      if (tree.full() || level.empty()) return;
      next.clear();
      const auto rows = drafter.propose(tree, level);
      for (std::size_t i = 0; i < level.size(); ++i) {
        const auto row = rows.row(static_cast<std::int32_t>(i));
        std::vector<double> left(row.begin(), row.end());
        for (std::int32_t k = 0; k < b && !tree.full(); ++k) {
          if (beyond && *std::max_element(left.begin(), left.end()) == 0) {
            for (std::size_t x = 0; x < left.size(); ++x)
              left[x] = row[x] > 0 || tree.view().find_child(level[i], static_cast<espalier::token_id>(x)) >= 0 ? 0 : 1;
          }
          const espalier::token_id t =
              chance.pick(std::span<const double>(left), {level[i], k, espalier::purpose::draft});
          if (t < 0) break;
          const auto x = static_cast<std::size_t>(t);
          next.push_back(tree.append(level[i], t, static_cast<float>(std::log(static_cast<double>(row[x])))));
          left[x] = 0;
          if (adaptive && static_cast<double>(row[x]) >= 0.5) break;
        }
      }
      level = next;
    }
  }

  void observe(espalier::tree_view, espalier::verdict) const {}
};
