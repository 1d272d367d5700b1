// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/tree_policy/dynatree_rule.hpp"
#include "espalier/tree_policy/layer.hpp"

namespace espalier {

//! Grows a tree breadth first from the draft's most probable token: breadth by the draft's confidence at each node, depth by
//! the probability of the path, both adapted to what was accepted lately. Both papers are settings of this one policy.
//!
//! Complexity  one draft pass a level, at most max_depth + 1; no allocation
//! Law         a node whose path probability is below a threshold stays in the tree, unexpanded
//! Errors      option_error for options out of range or order
//! Source      Chen et al., DynaTree (both papers), Algorithm 1 of each; history: their public code, updated every round
//!             as the paper says. See docs/algorithms.md for what the papers leave open.
class dynatree {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit dynatree(dynatree_options options = {}) : budget_(options.budget), rule_(options), layer_(options.budget) {
    require_option("max_depth", options.max_depth, 1, 64);
    require_option("base_depth", options.base_depth, 1, options.max_depth);
    require_option("max_breadth", options.max_breadth, 1, layer::max_breadth);
    require_option("mid_breadth", options.mid_breadth, 1, options.max_breadth);
    require_option("min_breadth", options.min_breadth, 1, options.mid_breadth);
    require_option("high_confidence", options.high_confidence, 0.0, 1.0);
    require_option("low_confidence", options.low_confidence, 0.0, options.high_confidence);
    require_option("prune_probability", options.prune_probability, 0.0, 1.0);
    require_option("deep_probability", options.deep_probability, 0.0, 1.0);
    require_option("stop_probability", options.stop_probability, 0.0, options.deep_probability);
  }

  std::int32_t max_nodes() const { return budget_; }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT&) {
    layer_.start();
    layer_.expand(tree, drafter, [](node_id, double) { return 1; });
    while (!tree.full()) {
      const tree_view view = tree;
      layer_.filter([&](node_id u) { return rule_.expands(view.depth[u], view.path_log_prob[u]); });
      if (layer_.empty()) return;
      layer_.expand(tree, drafter, [&](node_id, double confidence) { return rule_.breadth(confidence); });
    }
  }

  void observe(tree_view tree, verdict v) { rule_.observe(tree.depth[v.accepted]); }

  //! As dynatree_rule's.
  void observe_acceptance(double acceptance) { rule_.observe_acceptance(acceptance); }

  void reset() { rule_.reset(); }

  //! The options as history has adapted them.
  const dynatree_options& adapted() const { return rule_.adapted(); }

 private:
  std::int32_t budget_;
  dynatree_rule rule_;
  layer layer_;
};

}  // namespace espalier
