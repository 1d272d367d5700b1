// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/walk/residual.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

namespace detail {

// The best of the draws made at a node, and its distribution. The rank of a token is the number of powers of two from
// 1/8 to 8 that p / q reaches: a draw is the better, the higher its rank, and of draws of equal rank the first is the
// best. So the best of n draws has rank r with probability F(r)^n - F(r - 1)^n, where F(r) is the mass of q up to rank
// r, and within its rank it is distributed as q.
template <class TargetRowT, class DraftRowT>
class best_draw {
  using number = term_type<DraftRowT>;

 public:
  // Pre         node u has draws
  // Complexity  four passes over p and q if the node has several draws
  // Errors      input_error for a draw that q could not have given
  ESPALIER_HOST_DEVICE best_draw(tree_view tree, node_id u, TargetRowT p, DraftRowT q) : p_(p), q_(q) {
    std::int32_t best = -1;
    std::int32_t n_draws = 0;
    for (const node_id drawn : tree.draws(u)) {
      const std::int32_t here = rank(drawn_token(tree, drawn, q_));
      ++n_draws;
      if (here <= best) continue;
      best = here;
      child_ = drawn;
    }
    for (wide_number& times : times_)
      times = 1;
    if (n_draws > 1) weigh(n_draws);
  }

  ESPALIER_HOST_DEVICE node_id child() const { return child_; }
  // The probability that the best draw is token i.
  ESPALIER_HOST_DEVICE wide_number at(std::size_t i) const { return times_[rank(i)] * static_cast<wide_number>(q_[i]); }

  // The weights (p - share * probability of being the best draw)+.
  class left {
   public:
    ESPALIER_HOST_DEVICE left(const best_draw& best, wide_number share)
        : best_(&best), share_(share < largest_number<wide_number> ? share : largest_number<wide_number>) {}
    ESPALIER_HOST_DEVICE std::size_t size() const { return best_->p_.size(); }
    ESPALIER_HOST_DEVICE wide_number operator[](std::size_t i) const {
      return rest_of(static_cast<wide_number>(best_->p_[i]), share_, best_->at(i));
    }
    ESPALIER_HOST_DEVICE auto team() const { return best_->p_.team(); }

   private:
    const best_draw* best_;
    wide_number share_;
  };
  ESPALIER_HOST_DEVICE left after(wide_number share) const { return {*this, share}; }

 private:
  static constexpr std::int32_t n_ranks = 8;

  // The ratio p / q that a token of a higher rank has at least.
  ESPALIER_HOST_DEVICE static constexpr number bound(std::int32_t rank) {
    return static_cast<number>(1 << rank) / static_cast<number>(8);
  }

  ESPALIER_HOST_DEVICE std::int32_t rank(std::size_t i) const {
    std::int32_t reached = 0;
    for (std::int32_t r = 0; r + 1 < n_ranks; ++r)
      reached += p_[i] < bound(r) * q_[i] ? 0 : 1;
    return reached;
  }

  // Sets the factor of q for each rank: (F(r)^n - F(r - 1)^n) / (F(r) - F(r - 1)), as a sum without a difference.
  ESPALIER_HOST_DEVICE void weigh(std::int32_t n_draws) {
    wide_number up_to[n_ranks];
    for (std::int32_t r = 0; r < n_ranks; r += 2) {
      const bool is_last = r + 2 == n_ranks;
      const auto even = [&](std::size_t i) { return p_[i] < bound(r) * q_[i] ? q_[i] : number{0}; };
      const auto odd = [&](std::size_t i) { return is_last || p_[i] < bound(r + 1) * q_[i] ? q_[i] : number{0}; };
      const auto mass = team_of(p_).sums_of(q_.size(), even, odd);
      up_to[r] = mass.of[0];
      up_to[r + 1] = mass.of[1];
    }
    const wide_number total = up_to[n_ranks - 1];
    wide_number below = 0;
    for (std::int32_t r = 0; r < n_ranks; ++r) {
      const wide_number here = up_to[r] / total;
      wide_number power = 1;
      for (std::int32_t n = 1; n < n_draws; ++n) {
        power *= below;
        times_[r] = times_[r] * here + power;
      }
      below = here;
    }
  }

  TargetRowT p_;
  DraftRowT q_;
  node_id child_ = no_node;
  wide_number times_[n_ranks];
};

}  // namespace detail

//! Selects one path of the tree, at each node the draw with the highest rank by p / q, and judges it as a whole, as
//! block_verification does, by the distribution of the draws so selected. If the token after the kept path is another
//! drafted child, the verifier goes on from this child in the same way.
//!
//! Complexity  for each node of a judged path one pass over p and q, and four more if it has several draws; these again
//!             at each node where a judged path ends
//! Law         lossless for independent draws; on a single path the outcome is distributed as block_verification's
//! Errors      numeric_error for rows that are no distributions; input_error for draft rows that are missing or of
//!             another length than the target's, and for a tree that these rows could not have given
//! Source      ours, after the abstract of Thomas and Pal, Greedy multi-path block verification (arXiv 2602.16961);
//!             docs/algorithms/verifiers.md
struct multi_path_block {
  static constexpr regime lossless = regime::iid | regime::single_path;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  ESPALIER_HOST_DEVICE verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target,
                                      ChanceT& chance) const {
    for (node_id from = root_node;;) {
      const judged path = judge(tree, draft, target, chance, from);
      const node_id next = tree.find_child(path.kept, path.token);
      if (next == no_node || next == path.tested) return {path.kept, path.token};
      from = next;
    }
  }

 private:
  struct judged {
    node_id kept;
    token_id token;
    node_id tested;  // the selected child of `kept`; no_node at a leaf
  };

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  ESPALIER_HOST_DEVICE static judged judge(tree_view tree, const DraftRowsT& draft, TargetRowsT& target,
                                           ChanceT& chance, node_id from) {
    node_id kept = from;
    wide_number kept_weight = 1;
    wide_number weight = 1;
    node_id u = from;
    // With weight 0 no deeper node is kept, and the target need not have rows there.
    while (weight > 0 && !tree.is_leaf(u)) {
      const auto p = detail::target_row(target, u);
      const detail::best_draw best(tree, u, p, detail::draft_row(draft, u, p.size()));
      if (u != from) {
        const wide_number pass = block_verification::probability(weight, detail::mass(best.after(1 / weight)));
        if (chance.accept(pass, 1, {u, 0, purpose::accept})) kept = u, kept_weight = weight;
      }
      u = best.child();
      const auto x = static_cast<std::size_t>(tree.token[u]);
      weight = detail::passed_on(weight, static_cast<wide_number>(p[x]) / best.at(x));
    }
    if (u != from && tree.is_leaf(u) && chance.accept(weight, 1, {u, 0, purpose::accept})) kept = u;
    if (tree.is_leaf(kept)) {
      return {kept, detail::pick_token(tree, kept, detail::target_row(target, kept), chance), no_node};
    }
    const auto p = detail::known_row(target, kept);
    const detail::best_draw best(tree, kept, p, detail::known_row(draft, kept));
    return {kept, detail::pick_left(best.after(1 / kept_weight), p, kept, chance), best.child()};
  }
};

}  // namespace espalier
