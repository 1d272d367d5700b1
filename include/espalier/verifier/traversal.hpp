// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/verifier/walk/remaining_draft.hpp"
#include "espalier/verifier/walk/residual.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

namespace detail {

// The state of a node, kept while nodes below it are tested.
struct traversed_state {
  residual_state rest;
  remaining_draft_state drawn_from;
  wide_number probability = 1;
  std::int32_t draw = -1;
};

// A node of a traversal, at one of its draws: the draws before it have failed, with all nodes below them. Without
// replacement, repeated draws are passed over.
template <bool Replaces, class TargetRowT, class DraftRowT>
class traversed_node {
 public:
  using residual_type = residual<term_type<TargetRowT>, TargetRowT, DraftRowT>;

  ESPALIER_HOST_DEVICE traversed_node(tree_view tree, node_id u, TargetRowT p, DraftRowT q, wide_number probability)
      : tree_(tree),
        u_(u),
        q_(q),
        rest_(p, q),
        drawn_from_(tree, u, q),
        probability_(probability),
        draw_(tree.draws(u).begin()) {}

  // The probability with which the node is accepted once all its draws have failed.
  ESPALIER_HOST_DEVICE wide_number probability() const { return probability_; }
  // The weights from which the token after the node is drawn, if the node is accepted then.
  ESPALIER_HOST_DEVICE const residual_type& rest() const { return rest_; }

  ESPALIER_HOST_DEVICE bool has_draw() const { return draw_ != tree_.draws(u_).end(); }
  ESPALIER_HOST_DEVICE node_id child() const { return *draw_; }
  ESPALIER_HOST_DEVICE bool is_repeated() const { return detail::is_repeated(tree_, u_, draw_); }

  // The probability with which the subtree of the child is accepted.
  ESPALIER_HOST_DEVICE wide_number child_probability() const {
    const std::size_t x = drawn_token(tree_, *draw_, q_);
    return passed_on(probability_, rest_.at(x) / (times() * static_cast<wide_number>(q_[x])));
  }

  // Notes that the draw has failed, and goes on to the next.
  //
  // Complexity  one pass over p and q; without replacement also one over q, once for each node
  ESPALIER_HOST_DEVICE void reject() {
    if (probability_ > 0) {
      const wide_number left = probability_ * rest_.take(times() / probability_);
      if (left > 0 || probability_ < 1) probability_ = left / (left + (1 - probability_));
      if constexpr (!Replaces) drawn_from_.reject(draw_);
    }
    ++draw_;
    while (!Replaces && has_draw() && is_repeated())
      ++draw_;
  }

  ESPALIER_HOST_DEVICE traversed_state now() const {
    return {rest_.now(), drawn_from_.now(), probability_, draw_.draw};
  }
  ESPALIER_HOST_DEVICE void restore(const traversed_state& before) {
    rest_.restore(before.rest);
    drawn_from_.restore(before.drawn_from);
    probability_ = before.probability;
    draw_.draw = before.draw;
  }

 private:
  ESPALIER_HOST_DEVICE wide_number times() const { return Replaces ? 1 : 1 / drawn_from_.mass(); }

  tree_view tree_;
  node_id u_;
  DraftRowT q_;
  residual_type rest_;
  remaining_draft<DraftRowT> drawn_from_;
  wide_number probability_;
  draw_iterator draw_;
};

}  // namespace detail

//! Goes through the tree bottom up: the leaves are tested one after the other, and an inner node once all nodes below
//! it have failed. So a node is accepted only if no node below it is.
//!
//! DrawnT says how the children of a node were drawn. It decides what a rejected draw takes from the draft's row.
//! Without replacement, a repeated draw is passed over.
//!
//! Complexity  one pass over p and q for each draw that fails; without replacement also one over q for each node at
//!             which a draw fails. No allocation after reserve()
//! Law         lossless for the regimes in `lossless`; on a single path the outcome is distributed as
//!             block_verification's
//! Errors      numeric_error for rows that are no distributions, input_error for draft rows that are missing or of
//!             another length than the target's, and for a tree that these rows could not have given
//! Source      Weng et al., Traversal verification, Algorithm 2; Delayed tree expansion, 3.1. After a draw from q has
//!             failed, a node that had probability a and residual r has probability S / (S + 1 - a), where S is the
//!             mass of (a r - q)+; a public implementation takes a biased bound instead (docs/algorithms/verifiers.md)
template <regime DrawnT>
class basic_traversal {
 public:
  static constexpr bool replaces = DrawnT == regime::iid;
  static constexpr regime lossless = regime::iid | regime::single_path | DrawnT;

  //! The state that is kept of each node on the path.
  using memory = detail::traversed_state;

  void reserve(std::int32_t max_nodes, std::int32_t) { path_.resize(static_cast<std::size_t>(max_nodes) + 1); }

  //! Number of bytes that reserve() takes of an arena.
  static constexpr std::size_t bytes(const static_capacity& c) {
    return arena::bytes_of<memory>(static_cast<std::size_t>(c.nodes) + 1);
  }

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) {
    if (path_.size() < static_cast<std::size_t>(tree.n_nodes)) path_.resize(static_cast<std::size_t>(tree.n_nodes));
    return verify(tree, draft, target, chance, path_.data());
  }

  //! Verifies with memory that the caller provides: [nodes of the longest path].
  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  ESPALIER_HOST_DEVICE static verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target,
                                             ChanceT& chance, memory* path) {
    node_id u = root_node;
    const auto p = detail::target_row(target, u);
    const auto team = detail::team_of(p);
    if (tree.is_leaf(u)) return draw_at(u, p, chance);
    auto at = node_of(tree, u, p, detail::draft_row(draft, u, p.size()), 1);
    for (;;) {
      if (!at.has_draw()) {  // all draws of u have failed
        if (u == root_node || chance.accept(at.probability(), 1, {u, 0, purpose::accept}))
          return draw_at(u, at.rest(), chance);
        u = tree.parent[u];
        at = node_of(tree, u, detail::known_row(target, u), detail::known_row(draft, u), 1);
        at.restore(team.once([&] { return path[tree.depth[u]]; }));
        at.reject();
        continue;
      }
      const node_id child = at.child();
      if (!at.is_repeated()) {
        const wide_number passed = at.child_probability();
        if (!(passed > 0)) {
          refuse(tree, child, chance);
        } else if (!tree.is_leaf(child)) {
          team.once([&] { path[tree.depth[u]] = at.now(); });
          u = child;
          const auto below = detail::target_row(target, u);
          at = node_of(tree, u, below, detail::draft_row(draft, u, below.size()), passed);
          continue;
          // A leaf: its target row is made only once it is accepted.
        } else if (chance.accept(passed, 1, {child, 0, purpose::accept})) {
          return draw_at(child, detail::target_row(target, child), chance);
        }
      }
      at.reject();
    }
  }

 private:
  template <class TargetRowT, class DraftRowT>
  ESPALIER_HOST_DEVICE static detail::traversed_node<replaces, TargetRowT, DraftRowT> node_of(tree_view tree, node_id u,
                                                                                              const TargetRowT& p,
                                                                                              const DraftRowT& q,
                                                                                              wide_number probability) {
    return {tree, u, p, q, probability};
  }

  template <class WeightsT, class ChanceT>
  ESPALIER_HOST_DEVICE static verdict draw_at(node_id u, const WeightsT& weights, ChanceT& chance) {
    return {u, chance.pick(weights, {u, 0, purpose::residual})};
  }

  // Asks for the random numbers of a subtree that cannot be accepted, if the numbers of the chance depend on the order
  // of calls; does nothing if they go by key.
  template <class ChanceT>
  ESPALIER_HOST_DEVICE static void refuse(tree_view tree, node_id child, ChanceT& chance) {
    if constexpr (!requires { requires ChanceT::goes_by_key; }) {
      for (node_id u = child; u < tree.n_nodes; ++u) {
        if (tree.ancestor_at(u, tree.depth[child]) == child) chance.accept(0, 1, {u, 0, purpose::accept});
      }
    }
  }

  detail::list<memory> path_;
};

//! The traversal for independent draws, with multiplicity.
using traversal = basic_traversal<regime::iid>;
//! The traversal for draws without replacement. Independent draws become draws without replacement when repeated ones
//! are passed over.
using traversal_without_replacement = basic_traversal<regime::without_replacement>;

}  // namespace espalier
