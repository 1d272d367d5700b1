// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/verifier/residual.hpp"
#include "espalier/verifier/walk.hpp"

namespace espalier {

//! Tests the draws of a node one after the other in random order, each against what the rejected ones left of the target.
//!
//! Complexity  a node: one pass over p and q for each draw that fails; no allocation once warm
//! Law         lossless for independent draws. A second draw of a rejected token is rejected, too, but counts
//! Errors      numeric_error for rows that are no distributions, input_error for a tree that its rows could not have given
//! Source      SpecInfer; Delayed tree expansion, Algorithm 4
class specinfer {
 public:
  void reserve(std::int32_t max_nodes, std::int32_t) { left_.reserve(static_cast<std::size_t>(max_nodes)); }

  static constexpr regime lossless = regime::iid | regime::single_path;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target, ChanceT& chance) {
    return detail::walk_rows(tree, draft, target, chance,
                             [&](node_id u, auto p, auto q) { return choose(tree, u, p, q, chance); });
  }

 private:
  template <class NumberT, class ChanceT>
  token_id choose(tree_view tree, node_id u, std::span<const NumberT> p, std::span<const NumberT> q, ChanceT& chance) {
    left_.clear();
    for (const node_id child : tree.draws(u))
      left_.push_back(child);
    residual<NumberT> rest(p, q);
    for (std::int32_t turn = 0; !left_.empty(); ++turn) {
      if (turn > 0) rest.take(1);
      const auto i = chance.index(static_cast<std::int32_t>(left_.size()), {u, turn, purpose::select});
      const node_id child = left_[static_cast<std::size_t>(i)];
      left_.erase(left_.begin() + i);
      const std::size_t x = detail::drawn_token(tree, child, q);
      if (chance.accept(rest.at(x), static_cast<double>(q[x]), {u, turn, purpose::accept})) return tree.token[child];
    }
    const token_id token = chance.pick(rest.after(1), {u, 0, purpose::residual});
    return token >= 0 ? token : chance.pick(rest, {u, 0, purpose::residual});
  }

  std::vector<node_id> left_;  // draws not tested yet
};

}  // namespace espalier
