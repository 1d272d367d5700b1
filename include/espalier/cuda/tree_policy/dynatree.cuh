// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/tree_policy/growth/grow_level.cuh"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/dynatree/dynatree_rule.hpp"

namespace espalier::cuda {

namespace detail {

// A level of dynatree, for grow_level.
struct dynatree_step {
  child_lists children;
  const dynatree_rule* rule;

  __device__ std::int32_t n_draws(std::int32_t entry, node_id) const {
    const std::ptrdiff_t list = static_cast<std::ptrdiff_t>(entry) * children.k;
    if (children.tokens[list] < 0) return 0;
    const std::int32_t breadth = rule->breadth(static_cast<double>(children.probabilities[list]));
    std::int32_t n = 1;
    while (n < breadth && n < children.k && children.tokens[list + n] >= 0)
      ++n;
    return n;
  }
  __device__ bool expands(const tree_writer& tree, node_id node, std::ptrdiff_t) const {
    return rule->expands(tree.depth[node], tree.path_log_prob[node]);
  }
  __device__ void ask(node_id, std::ptrdiff_t) const {}
};

template <class RuleT>
ESPALIER_KERNEL void observe_round(tree_writer tree, const verdict* decision, RuleT* rule) {
  if (decision->token >= 0) rule->observe(tree.depth[decision->accepted]);
}

template <class RuleT>
ESPALIER_KERNEL void reset_rule(RuleT* rule) {
  rule->reset();
}

}  // namespace detail

//! espalier::dynatree on the device, both papers' settings and history included: the same tree from the same rows.
//!
//! Complexity  for each of max_depth + 1 levels: a draft pass with as many rows as the level may ask about (max_breadth
//!             to the power of its depth, half of the budget at most), padding included; a launch that reads the rows
//!             that are there; a launch of one block. No allocation after construction, no synchronisation
//! Law         that of espalier::dynatree
//! Errors      option_error for options out of range, and for a budget of more nodes than a block has room for
//! Source      as espalier::dynatree
class dynatree {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit dynatree(dynatree_options options = {}) : options_(require_options(options)) {
    require_option("budget on the device", options.budget, 2, detail::level_draws);
    const dynatree_rule rule(options);
    rule_ = device_array<dynatree_rule>(std::span<const dynatree_rule>(&rule, 1));
    std::int32_t widest = 1;
    for (std::int32_t depth = 0; depth <= options.max_depth; ++depth)
      widest = width(depth) > widest ? width(depth) : widest;
    asked_ = device_array<node_id>(static_cast<std::size_t>(widest));
    const std::size_t children = static_cast<std::size_t>(widest) * static_cast<std::size_t>(options.max_breadth);
    tokens_ = device_array<token_id>(children);
    probabilities_ = device_array<float>(children);
    log_probs_ = device_array<float>(children);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  node_list begin(tree_writer, cudaStream_t) {
    depth_ = 0;
    return wanted();
  }

  node_list take(tree_writer tree, const node_rows<float>& rows, chance_source, cudaStream_t stream) {
    const child_lists best{.tokens = tokens_.data(),
                           .probabilities = probabilities_.data(),
                           .log_probs = log_probs_.data(),
                           .k = depth_ == 0 ? 1 : options_.max_breadth};
    const node_list asked = wanted();
    top_children(rows.rows.vocab).find(rows, asked, best, stream);
    ++depth_;
    detail::launch_level(tree, detail::dynatree_step{best, rule_.data()}, options_.budget, asked, asked_.data(),
                         wanted().n, stream);
    return wanted();
  }

  void observe(tree_writer tree, const verdict* decision, cudaStream_t stream) const {
    if (!options_.history) return;
    launch("observe_round", detail::observe_round<dynatree_rule>, {}, stream, tree, decision, rule_.data());
  }

  void reset(cudaStream_t stream) const {
    launch("reset_rule", detail::reset_rule<dynatree_rule>, {}, stream, rule_.data());
  }

 private:
  node_list wanted() const { return {depth_ == 0 ? root_.data() : asked_.data(), width(depth_)}; }

  // Nodes of this depth that may be asked about. The levels above have one node at least, and each node asked about
  // adds one.
  std::int32_t width(std::int32_t depth) const {
    if (depth == 0) return 1;
    const std::int32_t most = depth > options_.max_depth ? 0 : (options_.budget - depth + 1) / 2;
    std::int32_t n = 1;
    for (std::int32_t d = 1; d < depth && n < most; ++d)
      n *= options_.max_breadth;
    return n < most ? n : most;
  }

  dynatree_options options_;
  device_array<dynatree_rule> rule_;
  std::int32_t depth_ = 0;
  device_array<node_id> root_{std::span(&root_node, 1)};
  device_array<node_id> asked_;    // [widest level]
  device_array<token_id> tokens_;  // [widest level][max_breadth]
  device_array<float> probabilities_;
  device_array<float> log_probs_;
};

}  // namespace espalier::cuda
