// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/verifier/walk/remaining_draft.hpp"
#include "espalier/verifier/walk/residual.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier::detail {

// The state of a node that is kept while nodes below it are looked at.
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

  // The probability to accept the node once all its draws have failed, and the weights that its token is drawn from
  // then.
  ESPALIER_HOST_DEVICE wide_number probability() const { return probability_; }
  ESPALIER_HOST_DEVICE const residual_type& rest() const { return rest_; }

  ESPALIER_HOST_DEVICE bool has_draw() const { return draw_ != tree_.draws(u_).end(); }
  ESPALIER_HOST_DEVICE node_id child() const { return *draw_; }
  ESPALIER_HOST_DEVICE bool is_repeated() const { return detail::is_repeated(tree_, u_, draw_); }

  // The probability to accept the subtree of the child.
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

}  // namespace espalier::detail
