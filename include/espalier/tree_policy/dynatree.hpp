// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/tree_policy/layer.hpp"

namespace espalier {

//! Defaults: DynaTree's second paper (appendix A) and, where that is silent, its public code. Depths are the paper's: the
//! first drafted token has depth 0.
struct dynatree_options {
  std::int32_t budget = 256;        //!< N_max, drafted tokens at most
  std::int32_t base_depth = 5;      //!< D_0, down to which likely and unlikely paths grow alike
  std::int32_t max_depth = 8;       //!< D_max
  std::int32_t min_breadth = 1;     //!< B_min, children of a confident node
  std::int32_t mid_breadth = 2;     //!< B_mid, children in between
  std::int32_t max_breadth = 3;     //!< B_max, children of an unsure node
  double high_confidence = 0.9;     //!< tau_h, from which a node is confident
  double low_confidence = 0.4;      //!< tau_l, below which a node is unsure
  double prune_probability = 0.05;  //!< tau, path probability below which a node stays a leaf
  double stop_probability = 0.1;    //!< rho_stop, the same, as early stopping
  double deep_probability = 0.5;    //!< rho_deep, path probability needed beyond the base depth
  bool history = true;              //!< adapt D_0, tau_h and rho_deep to recent acceptance

  //! The first paper: one breadth, one depth, one threshold; its best setting (D = 8, B = 3, tau = 0.03).
  static constexpr dynatree_options first_paper() {
    return {.budget = 256,
            .base_depth = 8,
            .max_depth = 8,
            .min_breadth = 3,
            .mid_breadth = 3,
            .max_breadth = 3,
            .high_confidence = 1.0,
            .low_confidence = 0.0,
            .prune_probability = 0.03,
            .stop_probability = 0.0,
            .deep_probability = 0.0,
            .history = false};
  }
};

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

  explicit dynatree(dynatree_options options = {}) : options_(options), now_(options), layer_(options.budget) {
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

  std::int32_t max_nodes() const { return options_.budget; }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT&) {
    layer_.start();
    layer_.expand(tree, drafter, [](node_id, double) { return 1; });
    while (!tree.full()) {
      const tree_view view = tree;
      layer_.filter([&](node_id u) { return expands(view, u); });
      if (layer_.empty()) return;
      layer_.expand(tree, drafter, [&](node_id, double confidence) { return breadth(confidence); });
    }
  }

  void observe(tree_view tree, verdict v) {
    if (!options_.history) return;
    const double committed = tree.depth[v.accepted] + 1;
    observe_acceptance((std::min)(1.0, committed / (now_.base_depth + 2)));
  }

  //! Adapts to the acceptance of one round, 0 to 1: over the last 10 rounds, once there are 5, a mean above 0.8 drafts
  //! deeper and narrower, one below 0.6 shallower and broader. Options move within the published bounds, or from where they
  //! were set outside of them toward these.
  void observe_acceptance(double acceptance) {
    window_[static_cast<std::size_t>(n_observed_++ % window)] = acceptance;
    if (n_observed_ < min_observed) return;
    const std::int32_t n = (std::min)(n_observed_, window);
    double mean = 0;
    for (std::int32_t i = 0; i < n; ++i)
      mean += window_[static_cast<std::size_t>(i)] / n;
    if (mean > 0.8) {
      now_.base_depth = (std::min)(now_.base_depth + 1, (std::max)(now_.max_depth - 1, options_.base_depth));
      now_.high_confidence = (std::max)(now_.high_confidence - 0.05, (std::min)(0.5, options_.high_confidence));
      now_.deep_probability = (std::max)(now_.deep_probability - 0.05, (std::min)(0.3, options_.deep_probability));
    } else if (mean < 0.6) {
      now_.base_depth = (std::max)(now_.base_depth - 1, (std::min)(2, options_.base_depth));
      now_.high_confidence = (std::min)(now_.high_confidence + 0.05, (std::max)(0.95, options_.high_confidence));
      now_.deep_probability = (std::min)(now_.deep_probability + 0.05, (std::max)(0.8, options_.deep_probability));
    }
  }

  void reset() {
    now_ = options_;
    n_observed_ = 0;
  }

  //! The options as history has adapted them.
  const dynatree_options& adapted() const { return now_; }

 private:
  static constexpr std::int32_t window = 10;
  static constexpr std::int32_t min_observed = 5;

  bool expands(tree_view tree, node_id u) const {
    const std::int32_t depth = tree.depth[u] - 1;
    const double probability = std::exp(static_cast<double>(tree.path_log_prob[u]));
    return probability >= now_.prune_probability && depth < now_.max_depth && probability >= now_.stop_probability &&
           (depth < now_.base_depth || probability >= now_.deep_probability);
  }

  std::int32_t breadth(double confidence) const {
    if (confidence >= now_.high_confidence) return now_.min_breadth;
    return confidence < now_.low_confidence ? now_.max_breadth : now_.mid_breadth;
  }

  dynatree_options options_;
  dynatree_options now_;
  layer layer_;
  std::array<double, window> window_{};
  std::int32_t n_observed_ = 0;
};

}  // namespace espalier
