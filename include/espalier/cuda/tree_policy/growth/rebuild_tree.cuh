// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/eagle2.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/tree_policy/growth/append_draws.cuh"
#include "espalier/cuda/tree_policy/growth/best_of_list.cuh"
#include "espalier/tree_policy/growth/asked_nodes.hpp"

namespace espalier::cuda::detail {

// Appends n draws in order to a tree of the given size; thread i has draw i, which gets a node of its own. Called by a
// block of threadsN threads. Overwrites the entries that `best` has found.
//
// Pre         as append_draws; a barrier since the entries that `best` has found were read
template <std::int32_t threadsN>
__device__ void append_in_order(const tree_writer& tree, const tree_size& size, std::int32_t n, listed_draw own,
                                best_of_list<threadsN>& best) {
  const auto siblings = best.siblings_of(n, own.above);
  own.number = own.node = static_cast<std::int32_t>(threadIdx.x);
  own.next = siblings.next;
  own.is_first = siblings.is_first;
  append_draws(tree, size, n, n, n, [&](std::int32_t) { return own; });
}

template <std::int32_t threadsN>
struct rebuild_memory {
  static constexpr std::int32_t max_asked = 4096;

  typename best_of_list<threadsN>::memory best;
  std::uint16_t now[max_asked + 1];      // number after the rebuild of each node that was asked about
  std::uint8_t has_child[threadsN + 1];  // by number after the rebuild
};

// Rebuilds a tree from n nodes, as espalier::asked_nodes does; the node of thread i becomes node i + 1. Writes the
// earlier number of each node to was [n + 1]. Called by a block.
//
// Pre         parents come before their children; n is at most the tree's limit; a barrier since the tree was written
template <std::int32_t threadsN>
__device__ void rebuild_tree(const tree_writer& tree, std::int32_t n, const considered_node& own,
                             rebuild_memory<threadsN>& memory, node_id* was) {
  const auto i = static_cast<std::int32_t>(threadIdx.x);
  const bool is_there = i < n;
  memory.has_child[i + 1] = 0;
  if (is_there && own.node != no_node) memory.now[own.node] = static_cast<std::uint16_t>(i + 1);
  if (i == 0) memory.now[root_node] = 0;
  // Reads the parent in the old tree before anything is overwritten.
  listed_draw draw;
  if (is_there) draw = listed_draw::of(tree, own.parent, own.token, own.log_prob);
  __syncthreads();
  if (is_there) {
    draw.above = memory.now[own.parent];
    memory.has_child[draw.above] = 1;
    was[i + 1] = own.node;
  }
  if (i == 0) {
    was[0] = root_node;
    tree.first_draw[root_node] = tree.last_draw[root_node] = -1;
  }
  __syncthreads();
  if (is_there) draw.is_leaf = memory.has_child[i + 1] == 0;
  best_of_list<threadsN> best(memory.best);
  append_in_order(tree, {1, 0}, n, draw, best);
}

}  // namespace espalier::cuda::detail
