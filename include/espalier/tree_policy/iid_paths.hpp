// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/tree_policy/delayed.hpp"

namespace espalier {

struct iid_paths_options {
  std::int32_t paths = 2;   //!< K, independent paths
  std::int32_t length = 4;  //!< L, drafted tokens of each
};

//! Draws K independent paths of L tokens from the root: a delayed tree without a trunk.
//!
//! Complexity, law and errors as delayed
//! Source      SpecTr; SpecInfer; Delayed tree expansion, section 3
class iid_paths {
 public:
  static constexpr regime sampling = regime::iid;

  explicit iid_paths(iid_paths_options options = {})
      : tree_({.paths = options.paths, .trunk = 0, .length = options.length}) {}

  std::int32_t max_nodes() const { return tree_.max_nodes(); }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    tree_.grow(tree, drafter, chance);
  }

  void observe(tree_view, verdict) const {}

 private:
  delayed tree_;
};

}  // namespace espalier
