// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <span>

#include "espalier/core/tree_view.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/verifier/walk.hpp"

namespace espalier::detail {

using draw_iterator = tree_view::draw_range::iterator;

// Whether an earlier draw of the same node gave the same token. Complexity O(draws of u).
inline bool is_repeated(tree_view tree, node_id u, draw_iterator draw) {
  for (auto earlier = tree.draws(u).begin(); earlier != draw; ++earlier) {
    if (*earlier == *draw) return true;
  }
  return false;
}

// The draft's row at a node while its draws are rejected in order, repeated ones passed over: what the next one was drawn from
// is q / mass() off the rejected tokens. The mass is a sum of what is left, never 1 minus what is gone: a peaked row leaves
// little, and all of it counts.
template <class NumberT>
class remaining_draft {
 public:
  remaining_draft(tree_view tree, node_id u, std::span<const NumberT> q) : tree_(tree), u_(u), q_(q) {}

  // 1 before any rejection; 0 once all that the row could give has been rejected.
  double mass() const { return mass_; }

  // Complexity: one pass over q, once a node, and O(draws of u squared). Errors: input_error for a draw of no token.
  void reject(draw_iterator draw) {
    if (undrawn_ < 0) undrawn_ = detail::mass(undrawn<NumberT>(tree_, u_, q_));
    mass_ = undrawn_;
    while (++draw != tree_.draws(u_).end()) {
      if (!is_repeated(tree_, u_, draw)) mass_ += static_cast<double>(q_[token_of(draw)]);
    }
  }

 private:
  std::size_t token_of(draw_iterator draw) const { return vocab_token(tree_, *draw, q_.size()); }

  tree_view tree_;
  node_id u_;
  std::span<const NumberT> q_;
  double mass_ = 1;
  double undrawn_ = -1;  // the mass of the tokens that no draw gave, once it is needed
};

}  // namespace espalier::detail
