// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/tree_policy/layer.hpp"

namespace espalier {

struct fixed_options {
  std::int32_t depth = 5;    //!< D, levels below the root
  std::int32_t breadth = 2;  //!< B, children of every node
  std::int32_t budget = 64;  //!< N, drafted tokens at most
};

//! Drafts the same shape every round: each node down to depth D gets its B most probable tokens, breadth first, until the
//! budget is spent.
//!
//! Complexity  D draft passes, one a level
//! Errors      option_error for a depth outside 1 to 64, a breadth outside 1 to 64 or a budget outside 2 to 65536
//! Source      the fixed tree that DynaTree is measured against, appendix A
class fixed {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit fixed(fixed_options options = {}) : options_(options), layer_(options.budget) {
    require_option("depth", options.depth, 1, 64);
    require_option("breadth", options.breadth, 1, layer::max_breadth);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT&) {
    layer_.start();
    for (std::int32_t d = 0; d < options_.depth && !layer_.empty() && !tree.full(); ++d) {
      layer_.expand(tree, drafter, [&](node_id, auto) { return options_.breadth; });
    }
  }

  void observe(tree_view, verdict) const {}

 private:
  fixed_options options_;
  layer layer_;
};

}  // namespace espalier
