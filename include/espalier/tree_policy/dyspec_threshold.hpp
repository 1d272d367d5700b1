// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/sampling/undrawn.hpp"

namespace espalier {

struct dyspec_threshold_options {
  std::int32_t budget = 64;     //!< drafted tokens a round at most
  std::int32_t max_depth = 16;  //!< levels below the root
  double threshold = 0.02;      //!< a draw less likely to be needed is not made
};

//! DySpec's tree layer by layer: every draw that is needed with at least the threshold's probability, after its ancestors were
//! accepted and its earlier siblings rejected. Draws are without replacement.
//!
//! Complexity  one draft pass a level; a draw is one or two passes over a row, and O(c * c) for the
//!             draw after c of the same node. No allocation after construction
//! Law         with the threshold at the value of the last draw, and no ties, the tree is that of dyspec_greedy. A token that was
//!             drawn is kept whatever it is; whether it is expanded depends on its probability
//! Errors      option_error for a budget outside 1 to 1024, a depth outside 1 to 64, a threshold outside 0 to 1
//! Source      DySpec, Algorithm 2. Budget and depth are ours: a sure draft never falls below a threshold
class dyspec_threshold {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit dyspec_threshold(dyspec_threshold_options options = {}) : options_(options) {
    require_option("budget", options.budget, 1, 1024);
    require_option("max_depth", options.max_depth, 1, 64);
    require_option("threshold", options.threshold, 0.0, 1.0);
    nodes_.reserve(static_cast<std::size_t>(options.budget) + 1);
    reach_.reserve(static_cast<std::size_t>(options.budget) + 1);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    // All expanded nodes, level after level.
    nodes_.assign(1, root_node);
    reach_.assign(1, 1.0);
    const std::int32_t limit = (std::min)(tree.limit(), options_.budget);
    std::size_t begin = 0;
    for (std::int32_t d = 0; d < options_.max_depth && begin < nodes_.size() && tree.view().n_draws < limit; ++d) {
      // Each node gives at least one draw: more than are left in the budget need not be asked.
      const auto left = static_cast<std::size_t>(limit - tree.view().n_draws);
      const std::size_t end = (std::min)(nodes_.size(), begin + left);
      const auto rows = drafter.propose(tree, std::span<const node_id>(nodes_).subspan(begin, end - begin));
      for (std::size_t i = begin; i < end; ++i)
        draw_children(tree, nodes_[i], rows.row(static_cast<std::int32_t>(i - begin)), reach_[i], limit, chance);
      begin = end;
    }
  }

  void observe(tree_view, verdict) const {}

 private:
  template <class TreeT, class NumberT, class ChanceT>
  void draw_children(TreeT& tree, node_id u, std::span<const NumberT> row, double reach, std::int32_t limit,
                     ChanceT& chance) {
    for (std::int32_t i = 0; tree.view().n_draws < limit && reach > 0 && reach >= options_.threshold; ++i) {
      const undrawn left(tree.view(), u, row);
      const double mass = i == 0 ? 1 : detail::mass(left);
      const token_id token = mass > 0 ? chance.pick(left, {u, i, purpose::draft}) : -1;
      if (token < 0) return;  // the row has given all it can
      const auto probability = static_cast<double>(row[static_cast<std::size_t>(token)]);
      const node_id child = tree.append(u, token, static_cast<float>(std::log(probability)));
      const double share = (std::min)(1.0, probability / mass);
      if (reach * share > 0 && reach * share >= options_.threshold) {
        nodes_.push_back(child);
        reach_.push_back(reach * share);
      }
      reach *= 1 - share;
    }
  }

  dyspec_threshold_options options_;
  std::vector<node_id> nodes_;
  std::vector<double> reach_;  // [nodes] the probability that the first draw from a node is looked at
};

}  // namespace espalier
