// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/cost/cost_curve.hpp"

namespace espalier {

//! The cost of rounds with two models on one machine, in seconds. Policies predict times with it.
//!
//!     const cost_model costs = measure_costs(drafter, target, kv);
//!     const double seconds = costs.tree(decode.last_round().tree, 160);
//!
//! Complexity  round: one evaluation of a curve for each pass; tree: O(nodes) for each 64 levels; no allocation
//! Law         never less for more rows, further passes or a longer context, up to rounding
struct cost_model {
  std::string hardware;    //!< the machine's name; empty if the seconds were not measured on a machine
  std::string target;      //!< identity of the target model
  std::string draft;       //!< identity of the draft model
  cost_curve draft_pass;   //!< one call of propose: the draft's pass and the making of its rows
  cost_curve target_pass;  //!< the target's pass over a tree, root included
  //! Seconds that a round with a draft takes beyond its passes, since each model drives the other one's weights out of
  //! the CPU's caches.
  double opening = 0;

  //! Seconds of a round in which the target forwards target_rows rows after `context` tokens. The drafter is asked once
  //! for each entry of draft_rows, for the rows of as many nodes as the entry says.
  double round(std::span<const std::int32_t> draft_rows, std::int32_t target_rows, std::int32_t context) const {
    double seconds = target_pass(target_rows, context) + (draft_rows.empty() ? 0.0 : opening);
    for (const std::int32_t rows : draft_rows)
      seconds += draft_pass(rows, context);
    return seconds;
  }

  //! Seconds of a round with this tree after `context` tokens, if the tree is grown level by level: one draft pass for
  //! each depth, over the nodes there that have children.
  double tree(tree_view tree, std::int32_t context) const {
    double seconds = target_pass(tree.n_nodes, context) + (tree.n_nodes > 1 ? opening : 0.0);
    constexpr std::int32_t levels = 64;
    std::int32_t deepest = 0;
    for (std::int32_t first = 0; first <= deepest; first += levels) {
      std::array<std::int32_t, levels> asked{};
      for (node_id u = 0; u < tree.n_nodes; ++u) {
        const std::int32_t level = tree.depth[u] - first;
        deepest = (std::max)(deepest, tree.depth[u]);
        if (level >= 0 && level < levels && !tree.is_leaf(u)) ++asked[static_cast<std::size_t>(level)];
      }
      for (const std::int32_t rows : asked)
        seconds += draft_pass(rows, context);
    }
    return seconds;
  }

  //! A copy of these costs for a drafter without a model, such as prompt_lookup: drafting costs nothing.
  cost_model without_draft() const { return {hardware, target, {}, cost_curve::linear(0, 0), target_pass}; }

  friend bool operator==(const cost_model&, const cost_model&) = default;
};

}  // namespace espalier
