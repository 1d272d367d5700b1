// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/verifier/walk/residual.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

//! Judges a path as a whole: keeps the longest beginning that passes its own test. A later token may make up for an
//! earlier one that was less likely under the target.
//!
//! Complexity  one pass over p and q for each inner node below the root; one draw at the end, from the residual or, at
//!             a leaf, from p; and one pass over each row that must be checked
//! Law         lossless for a single path; accepts at least as many tokens as naive, on average
//! Errors      numeric_error for rows that are no distributions; input_error for draft rows that are missing or of
//!             another length than the target's, and for a tree that these rows could not have given or that has more
//!             than one draw at a node
//! Source      Sun et al., Block verification accelerates speculative decoding, Algorithm 2. Delayed tree expansion
//!             (3.1) prints an acceptance by the weights w, which is biased; here it is S / (S + 1 - w), with S the
//!             mass of (w p - q)+ (docs/algorithms/verifiers.md)
struct block_verification {
  static constexpr regime lossless = regime::single_path;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  ESPALIER_HOST_DEVICE verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target,
                                      ChanceT& chance) const {
    node_id kept = root_node;
    wide_number kept_weight = 1;
    wide_number weight = 1;
    node_id u = root_node;
    auto p = detail::target_row(target, u);
    auto q = tree.is_leaf(u) ? p : detail::draft_row(draft, u, p.size());
    while (!tree.is_leaf(u)) {
      const node_id child = only_draw(tree, u, q);
      if (weight > 0) {
        const std::size_t x = detail::drawn_token(tree, child, q);
        weight = detail::passed_on(weight, static_cast<wide_number>(p[x]) / static_cast<wide_number>(q[x]));
      }
      u = child;
      wide_number pass = weight;
      if (!tree.is_leaf(u) &&
          weight > 0) {  // with weight 0 no deeper node is kept, and the target need not have rows there
        p = detail::target_row(target, u);
        q = detail::draft_row(draft, u, p.size());
        pass = probability(weight, residual(p, q).take(1 / weight));
      }
      if (chance.accept(pass, 1, {u, 0, purpose::accept})) kept = u, kept_weight = weight;
    }
    return conclude(tree, draft, target, chance, kept, kept_weight);
  }

  //! The probability with which the path up to an inner node is kept. The weight of the node is above 0; `rest` is the
  //! sum of (p - q / weight)+ over the vocabulary.
  ESPALIER_HOST_DEVICE static wide_number probability(wide_number weight, wide_number rest) {
    const wide_number left = weight * rest;
    return left > 0 ? left / (left + (1 - weight)) : 0;
  }

  //! The verdict that keeps the path up to this node, whose weight is given.
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  ESPALIER_HOST_DEVICE static verdict conclude(tree_view tree, const DraftRowsT& draft, TargetRowsT& target,
                                               ChanceT& chance, node_id kept, wide_number weight) {
    const auto p = detail::known_row(target, kept);
    if (tree.is_leaf(kept)) return {kept, detail::pick_token(tree, kept, p, chance)};
    return {kept, detail::pick_left(residual(p, detail::known_row(draft, kept)).after(1 / weight), p, kept, chance)};
  }

 private:
  ESPALIER_EXEC_CHECK_DISABLE
  template <class RowT>
  ESPALIER_HOST_DEVICE static node_id only_draw(tree_view tree, node_id u, const RowT&) {
    auto draw = tree.draws(u).begin();
    const node_id child = *draw;
    if constexpr (!detail::is_trusted<RowT>) {
      if (++draw != tree.draws(u).end()) {
        raise<input_error>("node ", u, " of the tree has several draws; block verification needs a single path.");
      }
    }
    return child;
  }
};

}  // namespace espalier
