// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/verifier/walk/residual.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

//! Tests the draws made at a node one after the other in random order, each against the part of the target that the
//! rejected draws have left.
//!
//! Complexity  a node: one pass over p and q for each draw that fails; if there are more than 1024 draws, the first
//!             1024 are tested
//! Law         lossless for independent draws. A second draw of a rejected token is rejected, too, but counts as a draw
//! Errors      numeric_error for rows that are no distributions, input_error for draft rows that are missing or of
//!             another length than the target's, and for a tree that these rows could not have given
//! Source      SpecInfer; Delayed tree expansion, Algorithm 4
class specinfer {
 public:
  static constexpr regime lossless = regime::iid | regime::single_path;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  ESPALIER_HOST_DEVICE verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target,
                                      ChanceT& chance) const {
    return detail::walk_rows(tree, draft, target, chance,
                             [&](node_id u, auto p, auto q) { return choose(tree, u, p, q, chance); });
  }

 private:
  static constexpr std::int32_t most_draws = 1024;

  // The draws made at a node that are not tested yet; at most the first 1024.
  class untested_draws {
   public:
    ESPALIER_HOST_DEVICE untested_draws(tree_view tree, node_id u) : tree_(tree), u_(u) {
      for (auto draw = tree.draws(u).begin(); draw != tree.draws(u).end() && n_ < most_draws; ++draw)
        ++n_;
    }

    ESPALIER_HOST_DEVICE std::int32_t size() const { return n_; }

    // Removes the i-th of these draws, counted from 0 in the order in which they were made, and returns its node.
    ESPALIER_HOST_DEVICE node_id take(std::int32_t i) {
      auto draw = tree_.draws(u_).begin();
      std::int32_t at = 0;
      for (; is_tested(at) || i-- > 0; ++at)
        ++draw;
      tested_[at / 64] |= std::uint64_t{1} << at % 64;
      --n_;
      return *draw;
    }

   private:
    ESPALIER_HOST_DEVICE bool is_tested(std::int32_t at) const { return (tested_[at / 64] >> at % 64 & 1) != 0; }

    tree_view tree_;
    node_id u_;
    std::int32_t n_ = 0;
    std::uint64_t tested_[most_draws / 64] = {};
  };

  template <class TargetRowT, class DraftRowT, class ChanceT>
  ESPALIER_HOST_DEVICE static token_id choose(tree_view tree, node_id u, const TargetRowT& p, const DraftRowT& q,
                                              ChanceT& chance) {
    residual rest(p, q);
    untested_draws left(tree, u);
    for (std::int32_t turn = 0; left.size() > 0; ++turn) {
      if (turn > 0) rest.take(1);
      const node_id child = left.take(chance.index(left.size(), {u, turn, purpose::select}));
      const std::size_t x = detail::drawn_token(tree, child, q);
      if (chance.accept(rest.at(x), static_cast<wide_number>(q[x]), {u, turn, purpose::accept}))
        return tree.token[child];
    }
    return detail::pick_left(rest.after(1), rest, u, chance);
  }
};

}  // namespace espalier
