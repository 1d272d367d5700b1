// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"

namespace espalier::cuda {

//! The most probable tokens of the rows of a block, in the memory of the device.
//!
//! Shapes      tokens, log_probs: [n_rows][n_ranks], the most probable first; a log-probability of minus infinity ends a list
struct prefix_lists {
  const token_id* tokens = nullptr;
  const float* log_probs = nullptr;
  std::int32_t n_rows = 0;
  std::int32_t n_ranks = 0;
};

namespace detail {

// Drafted tokens at most.
inline constexpr std::int32_t max_prefixes = 1024;

// A prefix that was taken, in shared memory. Prefixes are numbered as nodes of the tree: 0 is the root.
struct alignas(16) prefix_node {
  float path_log_prob;
  std::int16_t depth;
  std::int16_t n_children;   // taken ones: those of the first ranks
  std::int16_t first_child;  // 0 where there is none
  std::int16_t last_child;
  std::int16_t parent;
  std::int16_t rank;  // of its last token
};

struct prefix_nodes {
  prefix_node* node;           // [taken + 1]
  std::int16_t* next_sibling;  // [taken + 1] 0 where there is none

  // Appends a child to those of `above`, of which `parent` is a copy. Stores alone: nothing waits for them.
  __device__ void link(std::int32_t above, prefix_node parent, std::int32_t child) const {
    const auto number = static_cast<std::int16_t>(child);
    if (parent.n_children == 0) {
      parent.first_child = number;
    } else {
      next_sibling[parent.last_child] = number;
    }
    next_sibling[child] = 0;
    parent.last_child = number;
    ++parent.n_children;
    node[above] = parent;
  }
};

// Whether one prefix comes before another, different one in lexicographic order of ranks; a prefix comes before what it begins. Each
// is given by a node's number and the rank after it. ancestry(u) has members parent, rank and depth.
template <class AncestryT>
ESPALIER_HOST_DEVICE bool precedes(std::int32_t a, std::int32_t rank_a, std::int32_t b, std::int32_t rank_b,
                                   const AncestryT& ancestry) {
  const bool is_shorter = ancestry(a).depth < ancestry(b).depth;
  while (ancestry(a).depth > ancestry(b).depth)
    rank_a = ancestry(a).rank, a = ancestry(a).parent;
  while (ancestry(b).depth > ancestry(a).depth)
    rank_b = ancestry(b).rank, b = ancestry(b).parent;
  if (a == b && rank_a == rank_b) return is_shorter;
  while (a != b) {
    rank_a = ancestry(a).rank, a = ancestry(a).parent;
    rank_b = ancestry(b).rank, b = ancestry(b).parent;
  }
  return rank_a < rank_b;
}

// Makes the tree, which holds the root alone, that of these nodes, 1 to n, as if each had been appended in turn. All threads of the
// block; each writes every array of its nodes.
__device__ inline void write_nodes(tree_writer tree, const prefix_nodes& taken, std::int32_t n,
                                   const prefix_lists& lists) {
  for (std::int32_t u = static_cast<std::int32_t>(threadIdx.x); u <= n; u += static_cast<std::int32_t>(blockDim.x)) {
    const prefix_node node = taken.node[u];
    tree.first_draw[u] = node.n_children > 0 ? node.first_child - 1 : -1;
    tree.last_draw[u] = node.n_children > 0 ? node.last_child - 1 : -1;
    if (u == root_node) continue;
    const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(node.depth - 1) * lists.n_ranks + node.rank;
    tree.token[u] = lists.tokens[place];
    tree.parent[u] = node.parent;
    tree.depth[u] = node.depth;
    tree.log_prob[u] = lists.log_probs[place];
    tree.path_log_prob[u] = node.path_log_prob;
    tree.drawn_node[u - 1] = u;
    tree.next_draw[u - 1] = taken.next_sibling[u] > 0 ? taken.next_sibling[u] - 1 : -1;
  }
  if (threadIdx.x == 0) {
    tree.size->n_nodes = n + 1;
    tree.size->n_draws = n;
  }
}

}  // namespace detail

}  // namespace espalier::cuda
