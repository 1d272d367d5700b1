// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/concepts/regime.hpp"
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
class sampled_chain : public delayed {
 public:
  static constexpr regime sampling = regime::single_path | regime::iid | regime::without_replacement;

  explicit sampled_chain(sampled_chain_options options = {})
      : delayed({.paths = 1, .trunk = 0, .length = options.length}) {}
};

}  // namespace espalier
