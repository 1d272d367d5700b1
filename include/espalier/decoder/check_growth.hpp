// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/require_token.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

namespace detail {

// Returns the number of a node's draws that name this token.
inline std::int32_t times_drawn(tree_view tree, node_id u, token_id token) {
  std::int32_t n = 0;
  for (const node_id child : tree.draws(u))
    n += tree.token[child] == token ? 1 : 0;
  return n;
}

}  // namespace detail

//! Checks a tree against the rows that it was drawn from: what follows from the policy's regimes, and the
//! log-probabilities. Where ESPALIER_CHECKS is 1, each tree that is grown from one step drafter is checked so.
//!
//! Complexity  O(nodes vocab), and O(draws^2) for the draws of each node; no allocation
//! Errors      input_error that says what is wrong, at which node, and with which token if there is one
template <regime Sampling, class NumberT>
void check_growth(tree_view tree, const node_rows<NumberT>& rows) {
  constexpr bool is_deterministic = compatible(Sampling, regime::deterministic);
  constexpr bool is_distinct = is_deterministic || compatible(Sampling, regime::without_replacement);
  for (node_id u = 0; u < tree.n_nodes; ++u) {
    if (tree.is_leaf(u)) continue;
    if (!rows.has(u)) raise<input_error>("the policy draws from node ", u, ", which it has not asked about.");
    const auto row = rows.row(u);
    double least = 1;
    std::int32_t n_draws = 0;
    for (const node_id child : tree.draws(u)) {
      detail::require_token(tree, child, static_cast<std::int32_t>(row.size()));
      const token_id token = tree.token[child];
      const auto p = static_cast<double>(row[static_cast<std::size_t>(token)]);
      ++n_draws;
      if (p < least) least = p;
      if (p > 0) {
        const double expected = std::log(p), given = static_cast<double>(tree.log_prob[child]);
        if (!(std::abs(given - expected) <= 1e-5 * (1 - expected))) {
          raise<input_error>("the policy says that token ", token, " after node ", u, " has log-probability ", given,
                             "; its row says ", expected, ".");
        }
      } else if (is_deterministic || !compatible(Sampling, regime::without_replacement)) {
        raise<input_error>("the policy drafts token ", token, " after node ", u,
                           ", which its row gives probability 0.");
      }
      if (is_distinct && detail::times_drawn(tree, u, token) > 1) {
        raise<input_error>("the policy draws token ", token, " after node ", u,
                           " twice, which its regime does not allow.");
      }
    }
    if (compatible(Sampling, regime::single_path) && n_draws > 1)
      raise<input_error>("the policy draws ", n_draws, " tokens after node ", u, ", but its regime is a single path.");
    for (std::size_t t = 0; is_deterministic && t < row.size(); ++t) {
      const auto token = static_cast<token_id>(t);
      if (static_cast<double>(row[t]) > least && detail::times_drawn(tree, u, token) == 0) {
        raise<input_error>("the policy drafts a less probable token after node ", u, " than token ", token,
                           ", which it leaves out: its regime, deterministic, is of the most probable ones.");
      }
    }
  }
}

}  // namespace espalier
