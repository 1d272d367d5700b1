// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "espalier/concepts/regime.hpp"
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

// The best of the draws made at a node, and its distribution. A draw is the better, the greater p / q is, rounded down
// to a step of 1/8 of a power of two; of draws of equal rank the first is the best. So the best is a token of rank r
// with probability F(r)^n - F(r - 1)^n, where F(r) is the mass of q up to rank r, and within its rank it is distributed
// as q.
template <class TargetRowT, class DraftRowT>
class best_draw {
 public:
  // Pre         node u has draws
  // Complexity  one pass over p and q if the node has several draws
  // Errors      input_error for a draw that q could not have given
  best_draw(tree_view tree, node_id u, TargetRowT p, DraftRowT q) : p_(p), q_(q) {
    std::int32_t best_rank = -1;
    std::int32_t n_draws = 0;
    for (const node_id drawn : tree.draws(u)) {
      const std::size_t x = drawn_token(tree, drawn, q_);
      ++n_draws;
      if (rank(x) <= best_rank) continue;
      best_rank = rank(x);
      child_ = drawn;
    }
    set_times(n_draws);
  }

  node_id child() const { return child_; }
  // The probability that the best draw is token i.
  wide_number at(std::size_t i) const {
    return times_[static_cast<std::size_t>(rank(i))] * static_cast<wide_number>(q_[i]);
  }

  // The weights (p - share * probability of being the best draw)+.
  class left {
   public:
    left(const best_draw& best, wide_number share)
        : best_(&best), share_(share < largest_number<wide_number> ? share : largest_number<wide_number>) {}
    std::size_t size() const { return best_->p_.size(); }
    wide_number operator[](std::size_t i) const {
      const wide_number rest = static_cast<wide_number>(best_->p_[i]) - share_ * best_->at(i);
      return rest > 0 ? rest : 0;
    }

   private:
    const best_draw* best_;
    wide_number share_;
  };
  left after(wide_number share) const { return {*this, share}; }

 private:
  static constexpr std::int32_t step_bits = 3;
  static constexpr std::int32_t exponents = 8;  // ratios beyond 2^8 or below 2^-8 share the last ranks
  static constexpr std::int32_t lowest = (127 - exponents) << step_bits;
  static constexpr std::int32_t n_ranks = (2 * exponents << step_bits) + 1;

  // A token that q cannot give has any rank.
  std::int32_t rank(std::size_t i) const {
    const float ratio = static_cast<float>(p_[i]) / static_cast<float>(q_[i]);
    const std::int32_t above = (__builtin_bit_cast(std::int32_t, ratio) >> (23 - step_bits)) - lowest;
    return above < 0 ? 0 : above < n_ranks ? above : n_ranks - 1;
  }

  // Sets the factor of q for each rank: (F(r)^n - F(r - 1)^n) / (F(r) - F(r - 1)), as a sum without a difference.
  void set_times(std::int32_t n_draws) {
    times_.fill(1);
    if (n_draws == 1) return;
    std::array<wide_number, n_ranks> mass{};
    for (std::size_t i = 0; i < q_.size(); ++i)
      mass[static_cast<std::size_t>(rank(i))] += static_cast<wide_number>(q_[i]);
    wide_number total = 0;
    for (const wide_number m : mass)
      total += m;
    wide_number below = 0;
    for (std::size_t r = 0; r < mass.size(); ++r) {
      const wide_number up_to = below + mass[r] / total;
      wide_number power = 1;
      for (std::int32_t n = 1; n < n_draws; ++n) {
        power *= below;
        times_[r] = times_[r] * up_to + power;
      }
      below = up_to;
    }
  }

  TargetRowT p_;
  DraftRowT q_;
  node_id child_ = no_node;
  std::array<wide_number, n_ranks> times_;
};

}  // namespace detail

//! Selects one path of the tree, at each node the draw with the greatest p / q, and judges it as a whole, as
//! block_verification does, by the distribution of the draws so selected. If the token after the kept path is another
//! drafted child, the verifier goes on from this child in the same way.
//!
//! Complexity  per node of a judged path one pass over p and q, and one more where the node has several draws; one
//!             pass more at each node where a judged path ends; on the host only
//! Law         lossless for independent draws; on a single path the outcome is distributed as block_verification's
//! Errors      numeric_error for rows that are no distributions; input_error for draft rows that are missing or of
//!             another length than the target's, and for a tree that these rows could not have given
//! Source      Thomas and Pal, Greedy multi-path block verification (arXiv 2602.16961), in kind: the rounded ranks, the
//!             distribution by the number of draws at each node, and going on at another child are ours
//!             (docs/algorithms/verifiers.md)
struct multi_path_block {
  static constexpr regime lossless = regime::iid | regime::single_path;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
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
  static judged judge(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance, node_id from) {
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
