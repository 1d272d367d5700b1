// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/fixed.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/core/option.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/tree_policy/growth/asked_levels.cuh"
#include "espalier/cuda/tree_policy/growth/grow_level.cuh"

namespace espalier::cuda::detail {

// A step of grow_level whose nodes get their most probable tokens as children. A rule of each text decides how many.
// RuleT is a value with
//
//   budget()                        the largest number of drafted tokens
//   breadth(confidence)             number of children of a node whose row has this largest probability
//   expands(depth, path_log_prob)   whether a new node may be asked about
//
// Shapes: rule [places]; children [places][n_asked][k]
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

// The largest numbers that the rule of any text allows; launches are made for them.
struct rule_limits {
  std::int32_t n_levels;      // levels of nodes that have children
  std::int32_t root_breadth;  // children of the root
  std::int32_t breadth;       // children of any other node
  std::int32_t budget;        // drafted tokens
};

// The growth of trees, level after level, by a rule of each text (see rule_step), with the lists of the nodes to ask
// about and of their most probable tokens.
//
// Errors      option_error for a budget outside 2 to level_draws, or breadths that top_children has no room for
class rule_levels {
 public:
  explicit rule_levels(const rule_limits& limits) : limits_(limits), levels_(widths(limits)) {
    require_option("budget on the device", limits.budget, 2, level_draws);
  }

  void reserve(std::int32_t max_texts) {
    levels_.reserve(max_texts);
    tokens_ = device_array<token_id>(static_cast<std::size_t>(max_texts) * static_cast<std::size_t>(levels_.widest()) *
                                     static_cast<std::size_t>((std::max)(limits_.root_breadth, limits_.breadth)));
    probabilities_ = device_array<float>(tokens_.size());
    log_probs_ = device_array<float>(tokens_.size());
  }

  node_list begin() { return levels_.begin(); }

  // Appends the children that the rules give to the nodes asked about; returns the nodes to ask about next. Shapes:
  // rules [places]
  template <class RuleT>
  node_list take(const text_batch& texts, const text_rows& rows, const RuleT* rules, cudaStream_t stream) {
    const node_list asked = levels_.wanted();
    const child_lists best{.tokens = tokens_.data(),
                           .probabilities = probabilities_.data(),
                           .log_probs = log_probs_.data(),
                           .k = levels_.at_root() ? limits_.root_breadth : limits_.breadth};
    top_children(rows.rows.vocab).find(texts, rows, asked, best, stream);
    return levels_.grow(texts, rule_step<RuleT>{best, rules, asked.n}, stream);
  }

 private:
  // Returns the largest number of nodes of each level that may be asked about. Each level above has at least one node,
  // and each node that is asked about adds at least one child.
  static std::vector<std::int32_t> widths(const rule_limits& limits) {
    std::vector<std::int32_t> all;
    std::int32_t n = 1;  // number of nodes of the level if all nodes have all their children
    for (std::int32_t depth = 0; depth < limits.n_levels; ++depth) {
      const std::int32_t most = (limits.budget - depth + 1) / 2;
      all.push_back((std::min)(n, most));
      if (n < most) n *= depth == 0 ? limits.root_breadth : limits.breadth;
    }
    return all;
  }

  rule_limits limits_;
  asked_levels levels_;
  device_array<token_id> tokens_;  // [texts][nodes asked about][breadth]
  device_array<float> probabilities_;
  device_array<float> log_probs_;
};

}  // namespace espalier::cuda::detail
