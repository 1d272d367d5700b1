// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/verifier/walk/residual.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

namespace detail {

// The token after node u: its first draw if that is accepted; otherwise a draw from the residual, which may be the
// token of any other child.
template <class TargetRowT, class DraftRowT, class ChanceT>
ESPALIER_HOST_DEVICE token_id test_first_draw(tree_view tree, node_id u, const TargetRowT& p, const DraftRowT& q,
                                              ChanceT& chance) {
  const node_id child = *tree.draws(u).begin();
  const std::size_t x = drawn_token(tree, child, q);
  if (chance.accept(static_cast<wide_number>(p[x]), static_cast<wide_number>(q[x]), {u, 0, purpose::accept}))
    return tree.token[child];
  return pick_left(residual(p, q).after(1), p, u, chance);
}

}  // namespace detail

//! Accepts the first draw at each node with probability min(1, p / q), and draws from the residual if it fails: the
//! residual may give the token of another child, and the walk goes on there.
//!
//! Complexity  a node: one pass over p and q if its draw fails, or over p if it is a leaf; and one over each of its
//!             rows that must be checked
//! Law         lossless for independent draws. If the residual is 0 everywhere, by rounding alone (p = q), p stands for
//!             it
//! Errors      numeric_error for rows that are no distributions, input_error for draft rows that are missing or of
//!             another length than the target's, and for a tree that these rows could not have given
//! Source      Delayed tree expansion, Algorithm 2. Its text lets every node be accepted on its own, deepest first,
//!             which is biased on more than one path; this follows the listing
struct naive_tree {
  static constexpr regime lossless = regime::iid | regime::single_path;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  ESPALIER_HOST_DEVICE verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target,
                                      ChanceT& chance) const {
    return detail::walk_rows(tree, draft, target, chance,
                             [&](node_id u, auto p, auto q) { return detail::test_first_draw(tree, u, p, q, chance); });
  }
};

}  // namespace espalier
