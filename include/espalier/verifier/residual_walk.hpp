// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/verifier/remaining_draft.hpp"
#include "espalier/verifier/residual.hpp"
#include "espalier/verifier/walk.hpp"

namespace espalier {

namespace detail {

// What the target has left once all that the draft's row could give is rejected, while further draws come uniformly from
// the tokens of draft probability 0: R = norm((p - level)+) on these.
template <class NumberT>
class beyond_support {
 public:
  beyond_support(std::span<const NumberT> p, std::span<const NumberT> q) : p_(p), q_(q), mass_(detail::mass(*this)) {
    for (const NumberT x : q)
      n_ += x > 0 ? 0 : 1;
  }

  std::size_t size() const { return p_.size(); }
  NumberT operator[](std::size_t i) const {
    const NumberT d = p_[i] - level_;
    return d > 0 && !(q_[i] > 0) ? d : NumberT{0};
  }
  double at(std::size_t i) const { return static_cast<double>((*this)[i]) / mass_; }

  // What each of the tokens not drawn yet was drawn with.
  double draw_probability() const { return 1.0 / static_cast<double>(n_); }

  void reject() {
    beyond_support next = *this;
    next.level_ = static_cast<NumberT>(static_cast<double>(level_) + mass_ * draw_probability());
    next.mass_ = detail::mass(next);
    if (next.mass_ > 0) *this = next;
    --n_;
  }

 private:
  std::span<const NumberT> p_;
  std::span<const NumberT> q_;
  NumberT level_ = 0;
  std::int64_t n_ = 0;
  double mass_;
};

}  // namespace detail

//! Tests the draws of a node in the order they were made, each against what the rejected ones left of the target and with the
//! probability that it had after them.
//!
//! Repeated draws are passed over: independent draws, too, are draws without replacement then. Draws that were made after all
//! that the row could give are taken to be uniform over the other tokens, as in Sequoia; DySpec makes none.
//!
//! Complexity  a node: one pass over p and q for each draw that fails, and one over q if two do
//! Law         lossless for draws without replacement and, by the above, for independent ones
//! Errors      numeric_error for rows that are no distributions, input_error for a tree that its rows could not have given
//! Source      DySpec, Algorithm 3; Sequoia's verification, section 3 there
struct residual_walk {
  static constexpr regime lossless = regime::without_replacement | regime::iid | regime::single_path;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) const {
    return detail::walk_rows(tree, draft, target, chance,
                             [&](node_id u, auto p, auto q) { return choose(tree, u, p, q, chance); });
  }

 private:
  template <class NumberT, class ChanceT>
  static token_id choose(tree_view tree, node_id u, std::span<const NumberT> p, std::span<const NumberT> q,
                         ChanceT& chance) {
    residual<NumberT> rest(p, q);
    detail::remaining_draft<NumberT> drawn_from(tree, u, q);
    const auto end = tree.draws(u).end();
    auto rejected = end;  // what it leaves is worked out when it is needed
    std::int32_t turn = 0;
    for (auto draw = tree.draws(u).begin(); draw != end; ++draw) {
      if (detail::is_repeated(tree, u, draw)) continue;
      if (rejected != end) {
        rest.take(1 / drawn_from.mass());
        drawn_from.reject(rejected);
        if (drawn_from.mass() == 0) return choose_beyond(tree, u, p, q, draw, turn, chance);
      }
      const std::size_t x = detail::drawn_token(tree, *draw, q);
      const double drawn_with = static_cast<double>(q[x]) / drawn_from.mass();
      if (chance.accept(rest.at(x), drawn_with, {u, turn++, purpose::accept})) return tree.token[*draw];
      rejected = draw;
    }
    const token_id token = chance.pick(rest.after(1 / drawn_from.mass()), {u, 0, purpose::residual});
    return token >= 0 ? token : chance.pick(rest, {u, 0, purpose::residual});
  }

  template <class NumberT, class ChanceT>
  static token_id choose_beyond(tree_view tree, node_id u, std::span<const NumberT> p, std::span<const NumberT> q,
                                detail::draw_iterator draw, std::int32_t turn, ChanceT& chance) {
    detail::beyond_support<NumberT> rest(p, q);
    for (; draw != tree.draws(u).end(); ++draw) {
      if (detail::is_repeated(tree, u, draw)) continue;
      const std::size_t x = detail::vocab_token(tree, *draw, q.size());
      if (q[x] > 0) {
        raise<input_error>("node ", *draw, " of the tree bears token ", tree.token[*draw],
                           " after all that the draft's row could give: only other tokens can follow.");
      }
      if (chance.accept(rest.at(x), rest.draw_probability(), {u, turn++, purpose::accept})) return tree.token[*draw];
      rest.reject();
    }
    const token_id token = chance.pick(rest, {u, 0, purpose::residual});
    return token >= 0 ? token : chance.pick(p, {u, 0, purpose::residual});
  }
};

}  // namespace espalier
