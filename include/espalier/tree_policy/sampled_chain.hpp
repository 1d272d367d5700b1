// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/option.hpp"
#include "espalier/tree_policy/delayed.hpp"

namespace espalier {

struct sampled_chain_options {
  std::int32_t length = 5;  //!< L, drafted tokens a round

  static constexpr void describe(auto see) {
    see(option{"length", &sampled_chain_options::length, "drafted tokens a round", 0, 64});
  }
};

//! Draws L tokens one after the other: the single path that speculative sampling began with.
//!
//! Complexity  L draft passes of one row
//! Errors      option_error for options out of range; numeric_error for a row of the draft without a probability above
//!             0
//! Source      Leviathan et al. 2023; Chen et al. 2023
class sampled_chain : public delayed {
 public:
  static constexpr regime sampling = regime::single_path | regime::iid | regime::without_replacement;

  explicit sampled_chain(sampled_chain_options options = {})
      : delayed({.paths = 1, .trunk = 0, .length = options.length}) {}
};

}  // namespace espalier
