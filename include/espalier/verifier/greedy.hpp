// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/verifier/walk/walk.hpp"

namespace espalier {

//! Accepts the target's most probable tokens as far as the tree has drafted them, then adds the next one.
//!
//! Complexity  one argmax for each node of the path, and O(draws) to find the child
//! Law         the committed tokens are those of greedy decoding, whatever the tree
//! Errors      as espalier::argmax, for each row that is visited
//! Source      Chen et al., DynaTree, section 3.5; bonus token as in Algorithm 1
struct greedy {
  static constexpr regime lossless = regime::any;
  static constexpr bool argmax_only = true;   //!< true: the target's temperature must be 0
  static constexpr bool target_alone = true;  //!< true: no row of the draft is read

  template <class DraftRowsT, class TargetRowsT, class ChanceT>
  ESPALIER_HOST_DEVICE verdict verify(tree_view tree, const DraftRowsT&, TargetRowsT& target, ChanceT&) const {
    return detail::walk(tree, [&](node_id u) { return detail::argmax(target, u); });
  }
};

}  // namespace espalier
