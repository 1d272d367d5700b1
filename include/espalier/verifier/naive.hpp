// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/verifier/naive_tree.hpp"

namespace espalier {

//! Speculative sampling in its original form: along one path, each token is accepted with probability min(1, p / q); in
//! place of the first that fails, a token is drawn from the residual. It is naive_tree for trees with one draw at each
//! node.
//!
//! Complexity  one pass over p and q at the draw that fails, or over p at the leaf; and one over each row that must be
//!             checked
//! Law         lossless for a single path
//! Errors      as naive_tree
//! Source      Leviathan et al. 2023, Algorithm 1; Delayed tree expansion, Algorithm 2 with K = 1
struct naive {
  static constexpr regime lossless = regime::single_path;

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  ESPALIER_HOST_DEVICE verdict verify(tree_view tree, const DraftRowsT& draft, TargetRowsT& target,
                                      ChanceT& chance) const {
    return naive_tree().verify(tree, draft, target, chance);
  }
};

}  // namespace espalier
