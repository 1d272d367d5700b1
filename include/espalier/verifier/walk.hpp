// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/weights.hpp"

//! What verifiers have in common: the way down from the root, and the rows on it.
namespace espalier::detail {

// From the root, to the child that bears the token which choose(u) gives, as long as there is one.
template <class ChooseT>
verdict walk(tree_view tree, const ChooseT& choose) {
  node_id u = root_node;
  for (;;) {
    const token_id token = choose(u);
    const node_id child = tree.find_child(u, token);
    if (child == no_node) return {u, token};
    u = child;
  }
}

// How far the sum of a row may be from 1: what rounding makes of softmax in float is a hundredth of it.
inline constexpr double mass_tolerance = 1e-4;

// One pass. Errors: numeric_error where the row is no distribution.
template <class NumberT>
void require_distribution(std::span<const NumberT> row, const char* whose, node_id u) {
  constexpr NumberT bad = std::numeric_limits<NumberT>::quiet_NaN();
  const double total = sum_of(row.size(), [&](std::size_t i) { return row[i] >= 0 ? row[i] : bad; });
  if (total >= 1 - mass_tolerance && total <= 1 + mass_tolerance) return;
  for (std::size_t t = 0; t < row.size(); ++t) {
    if (!(row[t] >= 0)) {
      raise<numeric_error>("the ", whose, "'s probability of token ", t, " after node ", u, " is ", row[t],
                           "; probabilities are 0 or more.");
    }
  }
  raise<numeric_error>("the ", whose, "'s probabilities after node ", u, " add up to ", total, ", not to 1.");
}

// The target's row of a node. Rows that are distributions by construction say so and are not read for it.
template <class TargetRowsT>
auto target_row(TargetRowsT& target, node_id u) {
  const auto p = target.row(u);
  if constexpr (!requires { requires TargetRowsT::are_distributions; }) require_distribution(std::span(p), "target", u);
  return p;
}

// The row that the draws of a node came from. Errors: input_error where the rows do not fit the tree or the target.
template <class DraftRowsT>
auto draft_row(const DraftRowsT& draft, node_id u, std::size_t vocab) {
  if (!draft.has(u)) raise<input_error>("node ", u, " of the tree has draws, but the draft has no row for it.");
  const auto q = draft.row(u);
  if (q.size() != vocab) {
    raise<input_error>("the draft's row after node ", u, " has ", q.size(), " tokens and the target's ", vocab,
                       "; they must share one vocabulary.");
  }
  if constexpr (!requires { requires DraftRowsT::are_distributions; }) require_distribution(std::span(q), "draft", u);
  return q;
}

// The token of a node, as an index into rows. Errors: input_error where it is none.
inline std::size_t vocab_token(tree_view tree, node_id u, std::size_t vocab) {
  const token_id token = tree.token[u];
  if (token < 0 || static_cast<std::size_t>(token) >= vocab) {
    raise<input_error>("node ", u, " of the tree bears token ", token, ", but the vocabulary ends at ", vocab - 1, ".");
  }
  return static_cast<std::size_t>(token);
}

// The same for a drawn child. Errors: input_error where the row could not have given it.
template <class NumberT>
std::size_t drawn_token(tree_view tree, node_id child, std::span<const NumberT> q) {
  const std::size_t x = vocab_token(tree, child, q.size());
  if (!(q[x] > 0)) {
    raise<input_error>("node ", child, " of the tree bears token ", tree.token[child],
                       ", which the draft's row gives probability 0: it was not drawn from this row.");
  }
  return x;
}

// The same where the token is drawn from the target's row at a leaf, and elsewhere given by choose(u, p, q): the token after an
// inner node, from its target row and the row that its draws came from.
template <class DraftRowsT, class TargetRowsT, class ChanceT, class ChooseT>
verdict walk_rows(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance,
                  const ChooseT& choose) {
  return walk(tree, [&](node_id u) {
    const auto p = target_row(target, u);
    if (tree.is_leaf(u)) return static_cast<token_id>(chance.pick(p, {u, 0, purpose::residual}));
    return choose(u, p, draft_row(draft, u, p.size()));
  });
}

}  // namespace espalier::detail
