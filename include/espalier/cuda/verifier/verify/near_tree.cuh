// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/core/tree_view.hpp"

namespace espalier::cuda::detail {

// Trees of more nodes stay where they are, and so do the draws where they are more than nodes may be.
inline constexpr std::int32_t most_near_nodes = 1024;

// The shared memory that a copy of a tree of this many nodes takes.
inline std::size_t near_tree_bytes(std::int32_t max_nodes) {
  return max_nodes <= most_near_nodes ? 6 * static_cast<std::size_t>(max_nodes) * sizeof(std::int32_t) : 0;
}

// Copies what verifiers read of a tree to shared memory: each look at it would wait for the memory otherwise. Called by
// the whole block.
__device__ inline tree_view near_tree(const tree_view& tree, void* shared, std::int32_t max_nodes) {
  if (max_nodes > most_near_nodes) return tree;
  auto* const words = static_cast<std::int32_t*>(shared);
  const auto place = [&](std::int32_t array) { return words + array * max_nodes; };
  const auto thread = static_cast<std::int32_t>(threadIdx.x), threads = static_cast<std::int32_t>(blockDim.x);
  for (std::int32_t i = thread; i < tree.n_nodes && i < max_nodes; i += threads) {
    place(0)[i] = tree.token[i];
    place(1)[i] = tree.parent[i];
    place(2)[i] = tree.depth[i];
    place(3)[i] = tree.first_draw[i];
  }
  tree_view near = tree;
  near.token = place(0);
  near.parent = place(1);
  near.depth = place(2);
  near.first_draw = place(3);
  if (tree.n_draws <= max_nodes) {
    for (std::int32_t i = thread; i < tree.n_draws; i += threads) {
      place(4)[i] = tree.next_draw[i];
      place(5)[i] = tree.drawn_node[i];
    }
    near.next_draw = place(4);
    near.drawn_node = place(5);
  }
  __syncthreads();
  return near;
}

}  // namespace espalier::cuda::detail
