// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/tree_policy/delayed.hpp"

namespace espalier {

struct sampled_chain_options {
  std::int32_t length = 5;  //!< L, drafted tokens a round
};

//! Draws L tokens one after the other: the single path that speculative sampling began with.
//!
//! Complexity  L draft passes of one row
//! Errors      option_error for a length outside 0 to 64; numeric_error for a row of zeros
//! Source      Leviathan et al. 2023; Chen et al. 2023
class sampled_chain {
 public:
  static constexpr regime sampling = regime::single_path | regime::iid | regime::without_replacement;

  explicit sampled_chain(sampled_chain_options options = {})
      : path_({.paths = 1, .trunk = 0, .length = options.length}) {}

  std::int32_t max_nodes() const { return path_.max_nodes(); }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    path_.grow(tree, drafter, chance);
  }

  void observe(tree_view, verdict) const {}

 private:
  delayed path_;
};

}  // namespace espalier
