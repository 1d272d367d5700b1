// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
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
#include "espalier/tree_policy/log_prob.hpp"

namespace espalier {

struct dyspec_greedy_options {
  std::int32_t budget = 64;  //!< drafted tokens a round, all of them used where the draft's rows can give them
};

//! Grows the tree draw by draw where the next one is most likely to be needed: after its ancestors were accepted and its earlier
//! siblings rejected, as the draft's own probabilities have it. Draws are without replacement.
//!
//! Complexity  one draft pass of one row for each node that is drawn from, at most the budget; a draw is one or two passes over a row,
//!             O(log budget), and O(c * c) for the draw after c of the same node. No allocation after construction
//! Law         where to draw next does not depend on the token that will be drawn there
//! Errors      option_error for a budget outside 1 to 1024
//! Source      DySpec, Algorithm 1. Equal values are taken in the order in which they came up
class dyspec_greedy {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit dyspec_greedy(dyspec_greedy_options options = {}) : options_(options) {
    require_option("budget", options.budget, 1, 1024);
    heap_.reserve(2 * static_cast<std::size_t>(options.budget) + 1);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    heap_.clear();
    n_pushed_ = 0;
    push({.reach = 1, .node = root_node});
    const std::int32_t limit = (std::min)(tree.limit(), options_.budget);
    while (tree.view().n_draws < limit && !heap_.empty()) {
      expandable next = pop();
      const bool is_first = next.n_draws == 0;
      if (is_first) drafter.propose(tree, std::span<const node_id>(&next.node, 1));
      const auto row = drafter.rows().row(next.node);
      const undrawn left(tree.view(), next.node, row);
      const double mass = is_first ? 1 : detail::mass(left);
      const token_id token = mass > 0 ? chance.pick(left, {next.node, next.n_draws, purpose::draft}) : -1;
      if (token < 0) continue;  // the row has given all it can
      const auto probability = static_cast<double>(row[static_cast<std::size_t>(token)]);
      const node_id child = tree.append(next.node, token, detail::log_prob_of(probability));
      const double share = (std::min)(1.0, probability / mass);
      const double reach = next.reach;
      ++next.n_draws;
      next.reach = reach * (1 - share);
      if (next.reach > 0) push(next);
      push({.reach = reach * share, .node = child});
    }
  }

  void observe(tree_view, verdict) const {}

 private:
  // A node, and the next draw from its row.
  struct expandable {
    double reach = 1;  // the probability that the draw is looked at
    std::int64_t order = 0;
    node_id node = root_node;
    std::int32_t n_draws = 0;
  };

  static bool is_after(const expandable& a, const expandable& b) {
    return a.reach < b.reach || (a.reach == b.reach && a.order > b.order);
  }

  void push(expandable e) {
    e.order = n_pushed_++;
    heap_.push_back(e);
    std::push_heap(heap_.begin(), heap_.end(), is_after);
  }

  expandable pop() {
    std::pop_heap(heap_.begin(), heap_.end(), is_after);
    const expandable top = heap_.back();
    heap_.pop_back();
    return top;
  }

  dyspec_greedy_options options_;
  std::vector<expandable> heap_;
  std::int64_t n_pushed_ = 0;
};

}  // namespace espalier
