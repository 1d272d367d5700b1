// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/verifier/walk/remaining_draft.hpp"
#include "espalier/verifier/walk/residual.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

namespace detail {

// The part of the target that is left once all tokens that the draft's row could give are rejected, while further draws
// come uniformly from the tokens of draft probability 0: R = norm((p - level)+) on these tokens, where `level` is the
// probability that the rejected draws have subtracted from each of them, 0 at first.
template <class TargetRowT, class DraftRowT>
class beyond_support {
 public:
  using number = term_type<TargetRowT>;

  ESPALIER_HOST_DEVICE beyond_support(TargetRowT p, DraftRowT q) : p_(p), q_(q) {
    const auto others = [&](std::size_t i) { return q[i] > 0 ? number{0} : number{1}; };
    const auto found = team().sums_of(size(), *this, others);
    mass_ = found.of[0];
    n_ = found.of[1];
  }

  ESPALIER_HOST_DEVICE std::size_t size() const { return p_.size(); }
  ESPALIER_HOST_DEVICE number operator[](std::size_t i) const {
    const number d = p_[i] - level_;
    return d > 0 && !(q_[i] > 0) ? d : number{0};
  }
  ESPALIER_HOST_DEVICE auto team() const { return p_.team(); }
  ESPALIER_HOST_DEVICE wide_number at(std::size_t i) const { return static_cast<wide_number>((*this)[i]) / mass_; }

  // The probability with which the next draw gives any one of the tokens that can still be drawn.
  ESPALIER_HOST_DEVICE wide_number draw_probability() const { return 1 / n_; }

  ESPALIER_HOST_DEVICE void reject() {
    beyond_support next = *this;
    next.level_ = static_cast<number>(static_cast<wide_number>(level_) + mass_ * draw_probability());
    next.mass_ = detail::mass(next);
    if (next.mass_ > 0) *this = next;
    --n_;
  }

 private:
  TargetRowT p_;
  DraftRowT q_;
  number level_ = 0;
  wide_number n_;  // tokens that can still be drawn
  wide_number mass_;
};

// Returns the token of a draw that was made after the row had given all tokens that it could.
//
// Errors      input_error if the row could have given it
ESPALIER_EXEC_CHECK_DISABLE
template <class RowT>
ESPALIER_HOST_DEVICE std::size_t token_beyond(tree_view tree, node_id child, const RowT& q) {
  const std::size_t x = vocab_token(tree, child, q);
  if constexpr (!is_trusted<RowT>) {
    if (q[x] > 0) {
      raise<input_error>("node ", child, " of the tree bears token ", tree.token[child],
                         " after all that the draft's row could give: only other tokens can follow.");
    }
  }
  return x;
}

}  // namespace detail

//! Tests the draws made at a node in their order. Each draw is tested against the part of the target that the rejected
//! draws have left, with the probability that the draft gave its token after these draws.
//!
//! Repeated draws are passed over, so that independent draws become draws without replacement. Draws that were made
//! after the row had given all of its tokens are taken to be uniform over the other tokens, as in Sequoia; DySpec makes
//! no such draws.
//!
//! Complexity  a node: one pass over p and q for each draw that fails, and one over q if a draw follows a failed one;
//!             once more over p and q if draws come after the row had given all of its tokens
//! Law         lossless for draws without replacement and, since repeated draws are passed over, for independent draws
//! Errors      numeric_error for rows that are no distributions, input_error for draft rows that are missing or of
//!             another length than the target's, and for a tree that these rows could not have given
//! Source      DySpec, Algorithm 3; Sequoia's verification, section 3 there
struct residual_walk {
  static constexpr regime lossless = regime::without_replacement | regime::iid | regime::single_path;

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
    residual rest(p, q);
    detail::remaining_draft drawn_from(tree, u, q);
    const auto end = tree.draws(u).end();
    auto rejected = end;  // the last rejected draw: its effect is computed when it is needed
    std::int32_t turn = 0;
    for (auto draw = tree.draws(u).begin(); draw != end; ++draw) {
      if (detail::is_repeated(tree, u, draw)) continue;
      if (rejected != end) {
        rest.take(1 / drawn_from.mass());
        drawn_from.reject(rejected);
        if (drawn_from.mass() == 0) return choose_beyond(tree, u, p, q, draw, turn, chance);
      }
      const std::size_t x = detail::drawn_token(tree, *draw, q);
      const wide_number drawn_with = static_cast<wide_number>(q[x]) / drawn_from.mass();
      if (chance.accept(rest.at(x), drawn_with, {u, turn++, purpose::accept})) return tree.token[*draw];
      rejected = draw;
    }
    return detail::pick_left(rest.after(1 / drawn_from.mass()), rest, u, chance);
  }

  template <class TargetRowT, class DraftRowT, class ChanceT>
  ESPALIER_HOST_DEVICE static token_id choose_beyond(tree_view tree, node_id u, const TargetRowT& p, const DraftRowT& q,
                                                     detail::draw_iterator draw, std::int32_t turn, ChanceT& chance) {
    detail::beyond_support rest(p, q);
    for (; draw != tree.draws(u).end(); ++draw) {
      if (detail::is_repeated(tree, u, draw)) continue;
      const std::size_t x = detail::token_beyond(tree, *draw, q);
      if (chance.accept(rest.at(x), rest.draw_probability(), {u, turn++, purpose::accept})) return tree.token[*draw];
      rest.reject();
    }
    return detail::pick_left(rest, p, u, chance);
  }
};

}  // namespace espalier
