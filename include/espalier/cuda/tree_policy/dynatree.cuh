// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cub/block/block_scan.cuh>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/dynatree_rule.hpp"

namespace espalier::cuda {

namespace detail {

inline constexpr std::int32_t level_threads = 512;

struct level_memory {
  cub::BlockScan<std::int32_t, level_threads>::TempStorage scan;
};

// The level of a tree that grows breadth first, a thread a node: gives the nodes of a list their children, in order, and lists those
// of them that are asked about next.
class level_step {
 public:
  __device__ level_step(tree_writer tree, const child_lists& children, const dynatree_rule& rule, std::int32_t budget,
                        level_memory& memory)
      : tree_(tree), children_(children), rule_(rule), size_(*tree.size), memory_(memory) {
    const std::int32_t limit = size_.limit < budget ? size_.limit : budget;
    left_ = limit > size_.n_draws ? limit - size_.n_draws : 0;
  }

  __device__ void grow(const node_list& asked, bool is_root, node_id* next, std::int32_t n_next) {
    const auto i = static_cast<std::int32_t>(threadIdx.x);
    const node_id u = i < asked.n ? asked.nodes[i] : no_node;
    const std::ptrdiff_t list = static_cast<std::ptrdiff_t>(i) * children_.k;
    std::int32_t n = u == no_node ? 0 : n_children(list, is_root);
    std::int32_t before = 0, all = 0;
    scan(n, before, all);
    n = before + n < left_ ? n : (before < left_ ? left_ - before : 0);
    std::int32_t kept = 0;
    for (std::int32_t c = 0; c < n; ++c)
      kept += add_child(u, list + c, before + c) ? 1 : 0;
    if (n > 0) link(u, before, n);
    std::int32_t kept_before = 0, all_kept = 0;
    scan(kept, kept_before, all_kept);
    const std::int32_t added = all < left_ ? all : left_;
    const std::int32_t room = left_ - added < n_next ? left_ - added : n_next;  // each node adds at least one child
    const std::int32_t listed = all_kept < room ? all_kept : room;
    for (std::int32_t c = 0, at = kept_before; c < n && at < listed; ++c) {
      const node_id child = size_.n_nodes + before + c;
      if (rule_.expands(tree_.depth[child], tree_.path_log_prob[child])) next[at++] = child;
    }
    for (std::int32_t at = listed + i; at < n_next; at += level_threads)
      next[at] = no_node;
    if (i == 0) {
      tree_.size->n_nodes = size_.n_nodes + added;
      tree_.size->n_draws = size_.n_draws + added;
    }
  }

 private:
  __device__ void scan(std::int32_t n, std::int32_t& before, std::int32_t& all) {
    cub::BlockScan<std::int32_t, level_threads>(memory_.scan).ExclusiveSum(n, before, all);
    __syncthreads();
  }

  __device__ std::int32_t n_children(std::ptrdiff_t list, bool is_root) const {
    if (children_.tokens[list] < 0) return 0;
    const std::int32_t wanted = is_root ? 1 : rule_.breadth(static_cast<double>(children_.probabilities[list]));
    std::int32_t n = 1;
    while (n < wanted && children_.tokens[list + n] >= 0)
      ++n;
    return n;
  }

  // Child number `at` of the level. Whether it may be asked about.
  __device__ bool add_child(node_id above, std::ptrdiff_t entry, std::int32_t at) const {
    const node_id node = size_.n_nodes + at;
    const float log_prob = children_.log_probs[entry];
    const std::int32_t depth = tree_.depth[above] + 1;
    const float path_log_prob = tree_.path_log_prob[above] + log_prob;
    tree_.token[node] = children_.tokens[entry];
    tree_.parent[node] = above;
    tree_.depth[node] = depth;
    tree_.log_prob[node] = log_prob;
    tree_.path_log_prob[node] = path_log_prob;
    tree_.first_draw[node] = tree_.last_draw[node] = -1;
    return rule_.expands(depth, path_log_prob);
  }

  __device__ void link(node_id u, std::int32_t before, std::int32_t n) const {
    const std::int32_t first = size_.n_draws + before;
    tree_.first_draw[u] = first;
    tree_.last_draw[u] = first + n - 1;
    for (std::int32_t c = 0; c < n; ++c) {
      tree_.drawn_node[first + c] = size_.n_nodes + before + c;
      tree_.next_draw[first + c] = c + 1 < n ? first + c + 1 : -1;
    }
  }

  tree_writer tree_;
  child_lists children_;
  const dynatree_rule& rule_;
  tree_size size_;
  level_memory& memory_;
  std::int32_t left_;
};

template <class TreeT>
ESPALIER_KERNEL void start_levels(TreeT tree, node_id* asked) {
  *asked = tree.full() ? no_node : root_node;
}

// One block.
template <class RuleT>
ESPALIER_KERNEL void __launch_bounds__(level_threads)
    grow_level(tree_writer tree, child_lists children, const RuleT* rule, std::int32_t budget, node_list asked,
               bool is_root, node_id* next, std::int32_t n_next) {
  level_step step(tree, children, *rule, budget, *reinterpret_cast<level_memory*>(shared_memory()));
  step.grow(asked, is_root, next, n_next);
}

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
//! Complexity  for each of max_depth + 1 levels: a draft pass with as many rows as the level may ask about (max_breadth to the power of
//!             its depth, half of the budget at most), padding included; a launch that reads the rows that are there; a launch of one
//!             block. No allocation after construction, no synchronisation
//! Law         that of espalier::dynatree
//! Errors      option_error as there, and for a budget above 1024
//! Source      as espalier::dynatree
class dynatree {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit dynatree(dynatree_options options = {}) : options_(options) {
    require_option("budget", options.budget, 2, 2 * detail::level_threads);
    (void)espalier::dynatree(options);  // checks the others
    const dynatree_rule rule(options);
    rule_ = device_array<dynatree_rule>(std::span<const dynatree_rule>(&rule, 1));
    std::int32_t widest = 1;
    for (std::int32_t depth = 0; depth <= options.max_depth; ++depth)
      widest = width(depth) > widest ? width(depth) : widest;
    asked_ = device_array<node_id>(2 * static_cast<std::size_t>(widest));
    const std::size_t children = static_cast<std::size_t>(widest) * static_cast<std::size_t>(options.max_breadth);
    tokens_ = device_array<token_id>(children);
    probabilities_ = device_array<float>(children);
    log_probs_ = device_array<float>(children);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  template <StepDrafter DrafterT>
  void grow(tree_writer tree, DrafterT& drafter, chance_source, cudaStream_t stream) const {
    node_id* asked = asked_.data();
    node_id* next = asked + asked_.size() / 2;
    const top_children find_best(drafter.vocab_size());
    child_lists children{
        .tokens = tokens_.data(), .probabilities = probabilities_.data(), .log_probs = log_probs_.data()};
    launch("start_levels", detail::start_levels<tree_writer>, {}, stream, tree, asked);
    for (std::int32_t depth = 0; depth <= options_.max_depth && width(depth) > 0; ++depth) {
      const node_list nodes{asked, width(depth)};
      children.k = depth == 0 ? 1 : options_.max_breadth;
      drafter.propose(tree, nodes, stream);
      find_best.find(drafter.rows(), nodes, children, stream);
      const std::int32_t n_next = depth < options_.max_depth ? width(depth + 1) : 0;
      const launch_shape one_block{.threads = detail::level_threads, .shared_bytes = sizeof(detail::level_memory)};
      launch("grow_level", detail::grow_level<dynatree_rule>, one_block, stream, tree, children, rule_.data(),
             options_.budget, nodes, depth == 0, next, n_next);
      node_id* const other = asked;
      asked = next;
      next = other;
    }
  }

  void observe(tree_writer tree, const verdict* decision, cudaStream_t stream) const {
    if (!options_.history) return;
    launch("observe_round", detail::observe_round<dynatree_rule>, {}, stream, tree, decision, rule_.data());
  }

  void reset(cudaStream_t stream) const {
    launch("reset_rule", detail::reset_rule<dynatree_rule>, {}, stream, rule_.data());
  }

 private:
  // Nodes of this depth that may be asked about. The levels above have one node at least, and each node asked about adds one.
  std::int32_t width(std::int32_t depth) const {
    if (depth == 0) return 1;
    const std::int32_t most = (options_.budget - depth + 1) / 2;
    std::int32_t n = 1;
    for (std::int32_t d = 1; d < depth && n < most; ++d)
      n *= options_.max_breadth;
    return n < most ? n : most;
  }

  dynatree_options options_;
  device_array<dynatree_rule> rule_;
  device_array<node_id> asked_;    // [2][widest level]
  device_array<token_id> tokens_;  // [widest level][max_breadth]
  device_array<float> probabilities_;
  device_array<float> log_probs_;
};

}  // namespace espalier::cuda
