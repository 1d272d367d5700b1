// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/tree_policy/dynatree/dynatree_rule.hpp"
#include "espalier/tree_policy/growth/layer.hpp"

namespace espalier {

//! Grows a tree breadth first from the draft's most probable token. How many children a node gets follows from the
//! draft's confidence there (the largest probability of its row); how deep a path grows follows from its probability.
//! Both rules adapt to recent acceptance. The options cover both papers.
//!
//! Complexity  one draft pass a level, at most max_depth + 1; no allocation
//! Law         a node whose path probability is below a threshold stays in the tree as a leaf
//! Errors      option_error for options out of range
//! Source      Chen et al., DynaTree (both papers), Algorithm 1 of each; history: their public code, updated every
//!             round as the paper says. See docs/algorithms/tree_policies.md for what the papers leave open.
class dynatree {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit dynatree(dynatree_options options = {})
      : budget_(require_options(options).budget), rule_(options), layer_(budget_) {}

  std::int32_t max_nodes() const { return budget_; }
  //! Number of bytes that the policy takes of an arena at most.
  static constexpr std::size_t bytes(const static_capacity& c) { return layer::bytes(c); }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    layer_.start();
    return layer_.wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT&) {
    const bool at_root = tree.size() == 1;
    layer_.expand(tree, rows, [&](double confidence) { return at_root ? 1 : rule_.breadth(confidence); });
    layer_.filter(
        [view = tree.view(), this](node_id u) { return rule_.expands(view.depth[u], view.path_log_prob[u]); });
    return layer_.wanted(tree);
  }

  void observe(tree_view tree, verdict v) { rule_.observe(tree.depth[v.accepted], tree.n_draws); }

  //! Adapts to the acceptance of one round, from 0 to 1: see dynatree_rule::observe_acceptance.
  void observe_acceptance(double acceptance) { rule_.observe_acceptance(acceptance); }

  void reset() { rule_.reset(); }
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    rule_.serialize(archive);
  }

  //! The options as history has adapted them.
  const dynatree_options& adapted() const { return rule_.adapted(); }

 private:
  std::int32_t budget_;
  dynatree_rule rule_;
  layer layer_;
};

}  // namespace espalier
