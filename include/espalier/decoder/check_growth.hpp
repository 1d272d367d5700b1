// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/require_token.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/weights.hpp"

namespace espalier {

namespace detail {

// Returns the number of a node's draws that name this token.
inline std::int32_t times_drawn(tree_view tree, node_id u, token_id token) {
  std::int32_t n = 0;
  for (const node_id child : tree.draws(u))
    n += tree.token[child] == token ? 1 : 0;
  return n;
}

// True if draws with this chance are compared with the drafter's rows. If the chance has a member checks_draws, as in
// proofs, the value of this member says so; any other chance's draws are compared if ESPALIER_CHECKS is not 0.
template <class ChanceT>
constexpr bool checks_draws() {
  if constexpr (requires { ChanceT::checks_draws; }) return ChanceT::checks_draws;
  return ESPALIER_CHECKS != 0;
}

// A chance that hands every decision on to another one. It first compares the weights of each pick of a drafted token
// with the drafter's row: they must be in proportion to the row, or, in the regime without_replacement, to the row
// without tokens that were drawn at the node. A pick among fewer or more weights than the vocabulary has tokens is
// another decision of the policy, and is not compared.
//
// Complexity  O(vocab (1 + draws made at the node)) more for each pick that is compared; no allocation
template <regime Sampling, class TreeT, class RowsT, class ChanceT>
class watched_chance {
  static constexpr bool is_distinct = compatible(Sampling, regime::without_replacement);

 public:
  watched_chance(const TreeT& tree, const RowsT& rows, ChanceT& chance)
      : tree_(tree), rows_(rows), chance_(chance), n_before_(tree.view().n_draws) {}

  bool accept(double p, double q, chance_key at) { return chance_.accept(p, q, at); }
  std::int32_t index(std::int32_t n, chance_key at) { return chance_.index(n, at); }

  template <Weights WeightsT>
  std::int32_t pick(const WeightsT& weights, chance_key at) {
    const tree_view tree = tree_.view();
    if (at.use == purpose::draft && at.node >= 0 && at.node < tree.n_nodes) {
      if (!rows_.has(at.node))
        raise<input_error>("the policy draws from node ", at.node, ", which it has not asked about.");
      const auto row = rows_.row(at.node);
      if (row.size() == weights.size()) compare(tree, at.node, row, weights);
    }
    const std::int32_t token = chance_.pick(weights, at);
    if (at.use == purpose::draft && token >= 0) ++n_picked_;
    return token;
  }

 private:
  template <class RowT, class WeightsT>
  void compare(tree_view tree, node_id u, const RowT& row, const WeightsT& weights) {
    double of_weights = 0, of_row = 0;
    std::int32_t n_missing = 0;  // tokens of the row whose weight is 0 though the tree has no draw of them at u
    const auto undrawn_weight = [&](std::size_t t) {
      const bool drawn = is_distinct && times_drawn(tree, u, static_cast<token_id>(t)) > 0;
      return drawn ? 0.0 : static_cast<double>(row[t]);
    };
    for (std::size_t t = 0; t < row.size(); ++t) {
      const double w = static_cast<double>(weights[t]), q = undrawn_weight(t);
      of_weights += w;
      if (is_distinct && w == 0 && q > 0) {
        ++n_missing;
      } else {
        of_row += q;
      }
    }
    // A policy may pick several tokens of a node before it records them in the tree.
    const bool may_miss = n_missing <= n_picked_ - (tree.n_draws - n_before_);
    // Once every token to which the row gives a probability has been drawn, any other token may be drawn.
    if (of_row == 0 && is_distinct) return require_undrawn(tree, u, weights);
    for (std::size_t t = 0; t < row.size(); ++t) {
      const double q = undrawn_weight(t), w = static_cast<double>(weights[t]);
      if (is_distinct && w == 0 && (q == 0 || may_miss)) continue;
      const double share = of_weights > 0 ? w / of_weights : 0, expected = of_row > 0 ? q / of_row : 0;
      if (std::abs(share - expected) <= 1e-5 * (share + expected) + 1e-7) continue;
      raise<input_error>("the policy draws at node ", u, " from weights that are not the drafter's row",
                         is_distinct ? " without the tokens drawn there before" : "", ": token ", t, " has ", share,
                         " of the weights, and ", expected, " of the row.");
    }
  }

  template <class WeightsT>
  static void require_undrawn(tree_view tree, node_id u, const WeightsT& weights) {
    for (const node_id child : tree.draws(u)) {
      if (static_cast<double>(weights[static_cast<std::size_t>(tree.token[child])]) > 0) {
        raise<input_error>("the policy draws at node ", u, " from weights that give token ", tree.token[child],
                           ", which was drawn there before, another chance.");
      }
    }
  }

  const TreeT& tree_;
  const RowsT& rows_;
  ChanceT& chance_;
  std::int32_t n_before_;      // draws that the tree had at the beginning of the step
  std::int32_t n_picked_ = 0;  // tokens picked in this step
};

// Calls step(chance), in which a policy takes the drafter's answer. If draws are to be checked and the policy draws
// tokens, step gets a chance that compares the policy's draws with the answer's rows; else it gets `chance` itself.
template <regime Sampling, class TreeT, class AnswerT, class ChanceT, class StepT>
auto with_checked_draws(const TreeT& tree, const AnswerT& answer, ChanceT& chance, const StepT& step) {
  using watched = watched_chance<Sampling, TreeT, AnswerT, ChanceT>;
  if constexpr (checks_draws<ChanceT>() && !compatible(Sampling, regime::deterministic) &&
                requires {
                  answer.has(node_id{});
                  answer.row(node_id{});
                } &&
                std::is_invocable_v<StepT, watched&>) {
    watched checked(tree, answer, chance);
    return step(checked);
  } else {
    return step(chance);
  }
}

}  // namespace detail

//! Checks that a tree could have been grown from these rows by a policy of these regimes, and that its
//! log-probabilities are those of the rows. Where ESPALIER_CHECKS is 1, each tree that is grown from a single
//! StepDrafter is checked so.
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
