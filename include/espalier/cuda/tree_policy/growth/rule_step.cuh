// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/sampling/top_children.cuh"

namespace espalier::cuda::detail {

// A level of a tree whose nodes get their most probable tokens by a rule of each text, for grow_level. RuleT is a
// value, which has
//
//   budget()                        drafted tokens at most
//   breadth(confidence)             children of a node, where the largest probability of its row is that
//   expands(depth, path_log_prob)   whether a new node may be asked about
//
// Shapes: rule [places]; children by place, of n_asked nodes each
template <class RuleT>
struct rule_step {
  child_lists children;
  const RuleT* rule;
  std::int32_t n_asked;

  __device__ rule_step of(std::int32_t place) const {
    rule_step own = *this;
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * n_asked * children.k;
    own.children.tokens += first;
    own.children.probabilities += first;
    own.children.log_probs += first;
    own.rule += place;
    return own;
  }

  __device__ std::int32_t n_draws(std::int32_t entry, node_id) const {
    const std::ptrdiff_t list = static_cast<std::ptrdiff_t>(entry) * children.k;
    if (children.tokens[list] < 0) return 0;
    const std::int32_t breadth = rule->breadth(static_cast<double>(children.probabilities[list]));
    std::int32_t n = 1;
    while (n < breadth && n < children.k && children.tokens[list + n] >= 0)
      ++n;
    return n;
  }
  __device__ std::int32_t budget() const { return rule->budget(); }
  __device__ bool enter(const tree_writer& tree, node_id node, std::ptrdiff_t) const {
    return rule->expands(tree.depth[node], tree.path_log_prob[node]);
  }
  __device__ void ask(node_id, std::ptrdiff_t) const {}
};

}  // namespace espalier::cuda::detail
