// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

//! Draws each token from the target itself, and goes on in the tree as long as a child has the drawn token.
//!
//! Complexity  one row of the target and one draw for each node of the path
//! Law         lossless for every tree, however it was drafted. A text does not depend on the drafts: with the same
//!             seed it is, token by token, the text of plain decoding
//! Errors      numeric_error for a visited row of the target that is no distribution
//! Source      Delayed tree expansion, Algorithm 1 (NSS); also the rule of DDTree
struct target_only {
  static constexpr regime lossless = regime::any;
  static constexpr bool target_alone = true;  //!< true: no row of the draft is read

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  ESPALIER_HOST_DEVICE verdict verify(tree_view tree, const DraftRowsT&, TargetRowsT& target, ChanceT& chance) const {
    return detail::walk(tree,
                        [&](node_id u) { return detail::pick_token(tree, u, detail::target_row(target, u), chance); });
  }
};

}  // namespace espalier
