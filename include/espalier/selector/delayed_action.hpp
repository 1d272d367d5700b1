// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/tree_policy/delayed.hpp"

namespace espalier {

//! The delayed trees that a selector chooses among, numbered: 1 to 4 paths, a trunk of 0 to 8 tokens, then 0 to 8
//! tokens a path. If the paths have length 0, the tree is the same for any number of paths, but has a different number
//! for each.
//!
//! Source      Delayed tree expansion, section 6
struct delayed_action {
  static constexpr std::int32_t most_paths = 4, most_trunk = 8, most_length = 8;
  static constexpr std::int32_t count = most_paths * (most_trunk + 1) * (most_length + 1);

  //! Returns the tree with this number.
  //!
  //! Pre         0 <= number < count
  ESPALIER_HOST_DEVICE static constexpr delayed_options at(std::int32_t number) {
    constexpr std::int32_t lengths = most_length + 1, trunks = most_trunk + 1;
    return {.paths = number / (lengths * trunks) + 1, .trunk = number / lengths % trunks, .length = number % lengths};
  }

  //! Returns the number of a tree.
  //!
  //! Pre         paths, trunk and length are in the ranges above
  static constexpr std::int32_t number(const delayed_options& tree) {
    return ((tree.paths - 1) * (most_trunk + 1) + tree.trunk) * (most_length + 1) + tree.length;
  }
};

}  // namespace espalier
