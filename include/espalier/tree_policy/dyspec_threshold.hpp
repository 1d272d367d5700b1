// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/tree_policy/log_prob.hpp"

namespace espalier {

struct dyspec_threshold_options {
  std::int32_t budget = 64;     //!< drafted tokens a round at most
  std::int32_t max_depth = 16;  //!< levels below the root
  double threshold = 0.02;      //!< a draw less likely to be needed is not made while there are levels to come
  bool fill = false;            //!< after the last level, the threshold falls until the budget is spent
};

//! DySpec's tree layer by layer: every draw that is needed with at least the threshold's probability, after its ancestors were
//! accepted and its earlier siblings rejected. Draws are without replacement.
//!
//! A threshold that suits one round leaves budget unused in the next. With `fill`, what is left goes to further draws from the
//! rows that were asked for, the one most likely to be needed first (of equals, from the node that was asked about first):
//! the budget is used where these rows can give it. No node is asked about for it, so what it draws stays a leaf. A threshold
//! so low that it spends the budget on the first levels leaves nothing to fill, and no deep tree: with `fill` it may be high.
//!
//! Complexity  one draft pass a level, filled or not; a draw is one or two passes over a row, and O(c * c) for the draw after c
//!             of the same node; a draw that fills is O(nodes asked about), too. No allocation after construction
//! Law         with the threshold at the value of the last draw, and no ties, the tree is that of dyspec_greedy. A token that was
//!             drawn is kept whatever it is; whether it is expanded depends on its probability. The filled tree begins with
//!             all draws of the one that is not filled, and where to draw next never depends on the token drawn there
//! Errors      option_error for a budget outside 1 to 1024, a depth outside 1 to 64, a threshold outside 0 to 1
//! Source      DySpec, Algorithm 2; filling mends the weakness that its appendix B.1 reports. Budget and depth are ours: a sure
//!             draft never falls below a threshold
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
      for (std::size_t i = begin; i < end; ++i) {
        while (tree.view().n_draws < limit && is_needed(reach_[i]))
          draw(tree, i, rows.row(static_cast<std::int32_t>(i - begin)), chance);
      }
      begin = end;
    }
    while (options_.fill && begin > 0 && tree.view().n_draws < limit) {
      const auto asked = reach_.begin() + static_cast<std::ptrdiff_t>(begin);
      const auto i = static_cast<std::size_t>(std::max_element(reach_.begin(), asked) - reach_.begin());
      if (!(reach_[i] > 0)) return;
      draw(tree, i, drafter.rows().row(nodes_[i]), chance);
    }
  }

  void observe(tree_view, verdict) const {}

 private:
  bool is_needed(double reach) const { return reach > 0 && reach >= options_.threshold; }

  // One draw more from node i of those that were asked about; its reach falls to 0 once the row has given all it can.
  template <class TreeT, class NumberT, class ChanceT>
  void draw(TreeT& tree, std::size_t i, std::span<const NumberT> row, ChanceT& chance) {
    const node_id u = nodes_[i];
    const double reach = std::exchange(reach_[i], 0.0);
    std::int32_t slot = 0;
    for (auto it = tree.view().draws(u).begin(); it != tree.view().draws(u).end(); ++it)
      ++slot;
    const undrawn left(tree.view(), u, row);
    const double mass = slot == 0 ? 1 : detail::mass(left);
    const token_id token = mass > 0 ? chance.pick(left, {u, slot, purpose::draft}) : -1;
    if (token < 0) return;
    const auto probability = static_cast<double>(row[static_cast<std::size_t>(token)]);
    const node_id child = tree.append(u, token, detail::log_prob_of(probability));
    const double share = (std::min)(1.0, probability / mass);
    reach_[i] = reach * (1 - share);
    if (is_needed(reach * share)) {
      nodes_.push_back(child);
      reach_.push_back(reach * share);
    }
  }

  dyspec_threshold_options options_;
  std::vector<node_id> nodes_;
  std::vector<double> reach_;  // [nodes] the probability that the next draw from a node is looked at
};

}  // namespace espalier
