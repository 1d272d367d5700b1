// SPDX-License-Identifier: BSL-1.0
// Tested by tests/verifier/vectors.cpp
#pragma once

#include <cstddef>

#include "espalier/config.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier::detail {

using draw_iterator = tree_view::draw_range::iterator;

// True if an earlier draw at the same node gave the same token.
//
// Complexity  O(draws made at u)
ESPALIER_HOST_DEVICE inline bool is_repeated(tree_view tree, node_id u, draw_iterator draw) {
  for (auto earlier = tree.draws(u).begin(); earlier != draw; ++earlier) {
    if (*earlier == *draw) return true;
  }
  return false;
}

// The state of a remaining_draft: everything except tree and row.
struct remaining_draft_state {
  wide_number mass = 1;
  wide_number undrawn = -1;  // mass of the tokens that no draw gave; negative until it is needed
};

// The draft's row q at a node while the draws made there are rejected in order, and repeated draws are passed over: the
// next draw was made from q / mass(), without the rejected tokens. The mass is added up from the tokens that are left
// and never computed as 1 minus the rejected ones: if nearly all of the mass is rejected, rounding would spoil that
// difference.
template <class RowT>
class remaining_draft {
 public:
  ESPALIER_HOST_DEVICE remaining_draft(tree_view tree, node_id u, RowT q) : tree_(tree), u_(u), q_(q) {}

  // The mass that is left: 1 before any rejection, 0 once all tokens that the row could give have been rejected.
  ESPALIER_HOST_DEVICE wide_number mass() const { return now_.mass; }

  // Rejects a draw, the next one in order.
  //
  // Complexity  one pass over q, once for each node, and O(n^2) for n draws made at u
  // Errors      input_error for a draw of a token outside the vocabulary
  ESPALIER_HOST_DEVICE void reject(draw_iterator draw) {
    if (now_.undrawn < 0) now_.undrawn = detail::mass(undrawn(tree_, u_, q_));
    now_.mass = now_.undrawn;
    while (++draw != tree_.draws(u_).end()) {
      if (!is_repeated(tree_, u_, draw)) now_.mass += static_cast<wide_number>(q_[vocab_token(tree_, *draw, q_)]);
    }
  }

  ESPALIER_HOST_DEVICE const remaining_draft_state& now() const { return now_; }
  ESPALIER_HOST_DEVICE void restore(const remaining_draft_state& before) { now_ = before; }

 private:
  tree_view tree_;
  node_id u_;
  RowT q_;
  remaining_draft_state now_;
};

}  // namespace espalier::detail
