// SPDX-License-Identifier: BSL-1.0
// Tested by tests/verifier/vectors.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/core/wide_number.hpp"

//! The functions that verifiers share: the walk down from the root, and the rows on it.
namespace espalier::detail {

// Walks down from the root: at node u, choose(u) returns the next token, and the walk goes on at the child with this
// token. Returns the last node, and the next token, which no child of it has.
template <class ChooseT>
ESPALIER_HOST_DEVICE verdict walk(tree_view tree, const ChooseT& choose) {
  node_id u = root_node;
  for (;;) {
    const token_id token = choose(u);
    const node_id child = tree.find_child(u, token);
    if (child == no_node) return {u, token};
    u = child;
  }
}

// Returns min(1, probability * ratio). If `probability` is that with which a node is accepted, this is the probability
// with which its drawn child is accepted. If it is the node's weight (block_verification), this is the child's weight.
// `ratio` is the target's probability of the child's token divided by the draft's.
ESPALIER_HOST_DEVICE inline wide_number passed_on(wide_number probability, wide_number ratio) {
  const wide_number passed = probability > 0 ? probability * ratio : 0;
  return passed < 1 ? passed : 1;
}

// The most by which the sum of a row may differ from 1. Rounding of a softmax in float makes about a hundredth of this.
inline constexpr wide_number mass_tolerance = static_cast<wide_number>(1e-4);

// Checks in one pass that a row is a distribution. `whose` and u name the row in the message.
//
// Errors      numeric_error if the row is no distribution
template <class NumberT>
void require_distribution(std::span<const NumberT> row, const char* whose, node_id u) {
  constexpr NumberT bad = std::numeric_limits<NumberT>::quiet_NaN();
  const wide_number total = sum_of(row.size(), [&](std::size_t i) { return row[i] >= 0 ? row[i] : bad; });
  if (total >= 1 - mass_tolerance && total <= 1 + mass_tolerance) return;
  for (std::size_t t = 0; t < row.size(); ++t) {
    if (!(row[t] >= 0)) {
      raise<numeric_error>("the ", whose, "'s probability of token ", t, " after node ", u, " is ", row[t],
                           "; probabilities are 0 or more.");
    }
  }
  raise<numeric_error>("the ", whose, "'s probabilities after node ", u, " add up to ", total, ", not to 1.");
}

template <class RowsT>
inline constexpr bool are_distributions = requires {
  requires RowsT::are_distributions;
};

// True for rows that need not be checked: rows on the device, where no error can be raised.
template <class RowT>
inline constexpr bool is_trusted = requires {
  requires RowT::is_trusted;
};

// The row of a node, not checked here: the caller checks it, or has done so.
ESPALIER_EXEC_CHECK_DISABLE
template <class RowsT>
ESPALIER_HOST_DEVICE auto known_row(RowsT& rows, node_id u) {
  if constexpr (is_trusted<decltype(rows.row(u))>) {
    return rows.row(u);
  } else {
    return row_view(rows.row(u));
  }
}

ESPALIER_EXEC_CHECK_DISABLE
template <class TargetRowsT>
ESPALIER_HOST_DEVICE token_id argmax(TargetRowsT& target, node_id u) {
  return static_cast<token_id>(target.argmax(u));
}

// The target's row of a node, after a check in one pass. No check is made of rows whose type says that they are
// distributions by construction, nor on the device.
//
// Errors      numeric_error if the row is no distribution
ESPALIER_EXEC_CHECK_DISABLE
template <class TargetRowsT>
ESPALIER_HOST_DEVICE auto target_row(TargetRowsT& target, node_id u) {
  const auto p = known_row(target, u);
  if constexpr (!is_trusted<decltype(p)> && !are_distributions<TargetRowsT>)
    require_distribution(p.span(), "target", u);
  return p;
}

// The draft's row that the draws made at a node came from, checked as target_row() checks; `vocab` is the length of the
// target's row.
//
// Errors      input_error if the draft has no row for the node, or one whose length is not the target's; numeric_error
//             if the row is no distribution
ESPALIER_EXEC_CHECK_DISABLE
template <class DraftRowsT>
ESPALIER_HOST_DEVICE auto draft_row(const DraftRowsT& draft, node_id u, std::size_t vocab) {
  if constexpr (is_trusted<decltype(draft.row(u))>) {
    return draft.row(u);
  } else {
    if (!draft.has(u)) raise<input_error>("node ", u, " of the tree has draws, but the draft has no row for it.");
    const row_view q(draft.row(u));
    if (q.size() != vocab) {
      raise<input_error>("the draft's row after node ", u, " has ", q.size(), " tokens and the target's ", vocab,
                         "; they must share one vocabulary.");
    }
    if constexpr (!are_distributions<DraftRowsT>) require_distribution(q.span(), "draft", u);
    return q;
  }
}

// The token of a node, as an index into a row.
//
// Errors      input_error if it is outside the vocabulary
ESPALIER_EXEC_CHECK_DISABLE
template <class RowT>
ESPALIER_HOST_DEVICE std::size_t vocab_token(tree_view tree, node_id u, const RowT& row) {
  const token_id token = tree.token[u];
  if constexpr (!is_trusted<RowT>) {
    if (token < 0 || static_cast<std::size_t>(token) >= row.size()) {
      raise<input_error>("node ", u, " of the tree bears token ", token, ", but the vocabulary ends at ",
                         row.size() - 1, ".");
    }
  }
  return static_cast<std::size_t>(token);
}

// The token of a drawn child, as an index into a row.
//
// Errors      input_error if the row could not have given it
ESPALIER_EXEC_CHECK_DISABLE
template <class RowT>
ESPALIER_HOST_DEVICE std::size_t drawn_token(tree_view tree, node_id child, const RowT& q) {
  const std::size_t x = vocab_token(tree, child, q);
  if constexpr (!is_trusted<RowT>) {
    if (!(q[x] > 0)) {
      raise<input_error>("node ", child, " of the tree bears token ", tree.token[child],
                         ", which the draft's row gives probability 0: it was not drawn from this row.");
    }
  }
  return x;
}

// The token after node u, drawn from the target's row p alone. Its random number depends on the depth of u alone, so
// the token does not depend on the tree.
template <class RowT, class ChanceT>
ESPALIER_HOST_DEVICE token_id pick_token(tree_view tree, node_id u, const RowT& p, ChanceT& chance) {
  return static_cast<token_id>(chance.pick(p, {tree.depth[u], 0, purpose::token}));
}

// Walks down the tree: choose(u, p, q) returns the token after an inner node u, from the target's row p and the row q
// that the draws at u came from; at a leaf the token is drawn from p.
template <class DraftRowsT, class TargetRowsT, class ChanceT, class ChooseT>
ESPALIER_HOST_DEVICE verdict walk_rows(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance,
                                       const ChooseT& choose) {
  return walk(tree, [&](node_id u) {
    const auto p = target_row(target, u);
    if (tree.is_leaf(u)) return pick_token(tree, u, p, chance);
    return choose(u, p, draft_row(draft, u, p.size()));
  });
}

// The token drawn from `left`, the part of the target that is left. If nothing is left, which only rounding can cause,
// the token is drawn from `instead`.
template <class WeightsT, class InsteadT, class ChanceT>
ESPALIER_HOST_DEVICE token_id pick_left(const WeightsT& left, const InsteadT& instead, node_id u, ChanceT& chance) {
  const token_id token = chance.pick(left, {u, 0, purpose::residual});
  return token >= 0 ? token : chance.pick(instead, {u, 0, purpose::residual});
}

}  // namespace espalier::detail
