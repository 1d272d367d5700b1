// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/option.hpp"
#include "espalier/tree_policy/delayed.hpp"

namespace espalier {

struct iid_paths_options {
  std::int32_t paths = 2;   //!< K, independent paths
  std::int32_t length = 4;  //!< L, drafted tokens of each path

  static constexpr void describe(auto see) {
    see(option{"paths", &iid_paths_options::paths, "independent paths", 1, 64});
    see(option{"length", &iid_paths_options::length, "drafted tokens of each", 0, 64});
  }
};

//! Draws K independent paths of L tokens from the root: a delayed tree without a trunk.
//!
//! Complexity, law and errors are those of delayed
//! Source      SpecTr; SpecInfer; Delayed tree expansion, section 3
class iid_paths : public delayed {
 public:
  explicit iid_paths(iid_paths_options options = {})
      : delayed({.paths = options.paths, .trunk = 0, .length = options.length}) {}
};

}  // namespace espalier
