// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/tree_policy/growth/append_draws.cuh"

namespace espalier::cuda {

//! The most probable tokens of the rows of blocks, in the memory of the device.
//!
//! Shapes      tokens, log_probs: [places][n_rows][n_ranks], the most probable first; a log-probability of minus
//!             infinity ends a list
struct prefix_lists {
  const token_id* tokens = nullptr;
  const float* log_probs = nullptr;
  std::int32_t n_rows = 0;
  std::int32_t n_ranks = 0;

  //! Those of one text.
  ESPALIER_HOST_DEVICE prefix_lists of(std::int32_t place) const {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * n_rows * n_ranks;
    return {tokens + first, log_probs + first, n_rows, n_ranks};
  }
};

namespace detail {

// Drafted tokens at most.
inline constexpr std::int32_t max_prefixes = 1024;

// A prefix that was taken, in shared memory. Prefixes are numbered as nodes of the tree: 0 is the root.
struct alignas(16) prefix_node {
  float path_log_prob;
  std::int16_t depth;
  std::int16_t n_children;  // taken ones: those of the first ranks
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
    if (parent.n_children > 0) next_sibling[parent.last_child] = number;
    next_sibling[child] = 0;
    parent.last_child = number;
    ++parent.n_children;
    node[above] = parent;
  }
};

// Makes the tree, which holds the root alone, that of these nodes, 1 to n, as if each had been appended in turn. All
// threads of the block.
__device__ inline void write_nodes(tree_writer tree, const prefix_nodes& taken, std::int32_t n,
                                   const prefix_lists& lists) {
  append_draws(tree, {1, 0}, n, n, n, [&](std::int32_t i) {
    const prefix_node node = taken.node[i + 1];
    const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(node.depth - 1) * lists.n_ranks + node.rank;
    return listed_draw{.above = node.parent,
                       .token = lists.tokens[place],
                       .log_prob = lists.log_probs[place],
                       .depth = node.depth,
                       .path_log_prob = node.path_log_prob,
                       .number = i,
                       .node = i,
                       .next = taken.next_sibling[i + 1] - 1,
                       .is_first = node.rank == 0,
                       .is_leaf = node.n_children == 0};
  });
}

}  // namespace detail

}  // namespace espalier::cuda
