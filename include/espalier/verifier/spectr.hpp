// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/verifier/spectr/k_seq.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

//! Tests the draws made at a node in order, and accepts each with probability min(1, p / (rho q)). The factor rho makes
//! all of them together accept no more than the target has, so that one residual serves for all.
//!
//! Complexity  a node: 4 to 6 passes over p and q to find rho, whatever the vocabulary (none for a single draw), and
//!             one over p and q if all draws fail
//! Law         lossless for independent draws; with one draw it is naive_tree. rho solves its equation to 1e-13 for
//!             double rows and 4e-7 for float ones, which bounds the error of the emitted distribution in total
//!             variation
//! Errors      numeric_error for rows that are no distributions, input_error for draft rows that are missing or of
//!             another length than the target's, and for a tree that these rows could not have given
//! Source      Sun et al., SpecTr (K-SEQ); Delayed tree expansion, Algorithm 3. rho by tangents instead of bisection
struct spectr {
  static constexpr regime lossless = regime::iid | regime::single_path;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  ESPALIER_HOST_DEVICE verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target,
                                      ChanceT& chance) const {
    return detail::walk_rows(tree, draft, target, chance,
                             [&](node_id u, auto p, auto q) { return choose(tree, u, p, q, chance); });
  }

 private:
  template <class TargetRowT, class DraftRowT, class ChanceT>
  ESPALIER_HOST_DEVICE static token_id choose(tree_view tree, node_id u, const TargetRowT& p, const DraftRowT& q,
                                              ChanceT& chance) {
    std::int32_t n_draws = 0;
    for ([[maybe_unused]] const node_id child : tree.draws(u))
      ++n_draws;
    const detail::k_seq by = n_draws > 1 ? detail::solve_k_seq(p, q, n_draws) : detail::k_seq{};
    std::int32_t turn = 0;
    for (const node_id child : tree.draws(u)) {
      const std::size_t x = detail::drawn_token(tree, child, q);
      const wide_number most = by.rho * static_cast<wide_number>(q[x]);
      if (chance.accept(static_cast<wide_number>(p[x]), most, {u, turn++, purpose::accept})) return tree.token[child];
    }
    return detail::pick_left(detail::k_seq_residual(p, q, by), p, u, chance);
  }
};

}  // namespace espalier
