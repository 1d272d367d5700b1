// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

//! Drafts nothing: one token a round, what every other policy is measured against.
struct plain {
  static constexpr regime sampling = regime::any;

  std::int32_t max_nodes() const { return 0; }

  template <class TreeT, class DrafterT, class ChanceT>
  void grow(TreeT&, DrafterT&, ChanceT&) const {}

  void observe(tree_view, verdict) const {}
};

}  // namespace espalier
