// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/verifier/remaining_draft.hpp"
#include "espalier/verifier/residual.hpp"
#include "espalier/verifier/walk.hpp"

namespace espalier {

//! Goes through the tree bottom up: a leaf is tested first, then the next one, and an inner node once all below it has failed, so
//! that the longest path that can be accepted is.
//!
//! DrawnT says how the children of a node were drawn: it decides what a rejected draw takes from the draft's row. Without
//! replacement, a repeated draw is passed over.
//!
//! Complexity  one pass over p and q for each draw that fails; recursion as deep as the tree
//! Law         lossless for the regimes it names; on a single path the outcome is distributed as block's
//! Errors      numeric_error for rows that are no distributions, input_error for a tree that its rows could not have given
//! Source      Weng et al., Traversal verification, Algorithm 2; Delayed tree expansion, 3.1. The acceptance after a rejection
//!             is S / (S + 1 - a), where a public implementation takes a biased bound (docs/algorithms.md)
template <regime DrawnT>
struct basic_traversal {
  static constexpr bool replaces = DrawnT == regime::iid;
  static constexpr regime lossless = regime::iid | regime::single_path | DrawnT;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    verdict result;
    visit(tree, draft, target, chance, root_node, 1, result);
    return result;
  }

 private:
  // Whether the subtree of u is accepted, which it is with this probability; then the result is set.
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  static bool visit(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance, node_id u,
                    double probability, verdict& result) {
    if (tree.is_leaf(u) && u != root_node) return accept_leaf(target, chance, u, probability, result);
    const auto p = detail::target_row(target, u);
    const auto q = tree.is_leaf(u) ? p : detail::draft_row(draft, u, p.size());
    residual rest(p, q);
    detail::remaining_draft drawn_from(tree, u, q);
    for (auto draw = tree.draws(u).begin(); draw != tree.draws(u).end(); ++draw) {
      const bool repeated = detail::is_repeated(tree, u, draw);
      if (repeated && !replaces) continue;
      const std::size_t x = detail::drawn_token(tree, *draw, q);
      const double times = replaces ? 1 : 1 / drawn_from.mass();
      if (!repeated) {
        const double passed = (std::min)(1.0, probability * rest.at(x) / (times * static_cast<double>(q[x])));
        if (passed > 0 ? visit(tree, draft, target, chance, *draw, passed, result) : refuse(tree, chance, *draw))
          return true;
      }
      if (probability == 0) continue;
      const double left = probability * rest.take(times / probability);
      if (left > 0 || probability < 1) probability = left / (left + (1 - probability));
      if (!replaces) drawn_from.reject(draw);
    }
    if (u != root_node && !chance.accept(probability, 1, {u, 0, purpose::accept})) return false;
    result = {u, chance.pick(rest, {u, 0, purpose::residual})};
    return true;
  }

  // No row is made for a leaf that fails.
  template <class TargetRowsT, class ChanceT>
  static bool accept_leaf(TargetRowsT& target, ChanceT& chance, node_id u, double probability, verdict& result) {
    if (!chance.accept(probability, 1, {u, 0, purpose::accept})) return false;
    result = {u, chance.pick(detail::target_row(target, u), {u, 0, purpose::residual})};
    return true;
  }

  // Visits a subtree that cannot be accepted, for the random numbers it uses up: no row is read, and every test fails.
  template <class ChanceT>
  static bool refuse(tree_view tree, ChanceT& chance, node_id u) {
    for (auto draw = tree.draws(u).begin(); draw != tree.draws(u).end(); ++draw) {
      if (!detail::is_repeated(tree, u, draw)) refuse(tree, chance, *draw);
    }
    return chance.accept(0, 1, {u, 0, purpose::accept});
  }
};

//! For independent draws, with multiplicity.
using traversal = basic_traversal<regime::iid>;
//! For draws without replacement; independent draws are such once repeated ones are passed over.
using traversal_without_replacement = basic_traversal<regime::without_replacement>;

}  // namespace espalier
