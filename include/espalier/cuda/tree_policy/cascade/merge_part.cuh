// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/moved_nodes.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/text_batch.cuh"

//! How the trees of a cascade's policies become one.
namespace espalier::cuda::detail {

inline constexpr std::int32_t merge_threads = 256;

// What the tree of a text's next policy may hold.
struct part_room {
  std::int32_t capacity = 0;  // tokens that its drafter can hold
  std::int32_t most = 0;      // drafted tokens

  __device__ std::int32_t limit(const text_in_batch& here, std::int32_t all) const {
    const std::int32_t left = capacity - here.text.state->size, room = left > 0 ? left : 0;
    const std::int32_t own = room < most ? room : most;
    return own < all ? own : all;
  }
};

// The merged trees. Their limits are those of the round; while they are made, what a policy drafts is in the texts' own
// trees.
//
// Shapes: by place the trees, `words` from one to the next; node_of [places][stride]: of a drafted node, the merged one
struct merged_trees {
  tree_writer trees;
  std::ptrdiff_t words;
  node_id* node_of;
  std::int32_t stride;

  __device__ tree_writer tree(std::int32_t place) const { return moved(trees, place * words); }
};

// One thread a lane: nothing is merged yet, and the first policy's tree is the root.
template <class RoomT>
ESPALIER_KERNEL void open_cascade(text_batch texts, merged_trees to, RoomT room) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const token_id root = here.tree.token[root_node];
  const std::int32_t all = here.tree.limit();
  to.tree(here.place).reset(root, all);
  here.tree.reset(root, room.limit(here, all));
}

// By a block, all of it: number i is brought by thread i modulo merge_threads.
template <class FunctionT>
__device__ void each_node(std::int32_t n, const FunctionT& f) {
  for (auto u = static_cast<node_id>(threadIdx.x); u < n; u += merge_threads)
    f(u);
}

// Which nodes of the merged tree the drafted ones are; those that it lacks get the next numbers in their order, as far
// as it has room, and the others are no_node. Gives how many it gets.
//
// Pre: siblings of a tree bear different tokens
__device__ inline std::int32_t find_merged(const tree_writer& merged, const tree_writer& drafted, node_id* node_of,
                                           warp_sums& sums) {
  const std::int32_t n = drafted.size->n_nodes, n_known = merged.size->n_nodes, left = merged.left();
  each_node(n, [&](node_id u) { node_of[u] = u == root_node ? root_node : no_node; });
  __syncthreads();
  // Level after level, as far as both have the same paths: a child is there only where its parent is.
  bool any = true;
  for (std::int32_t level = 1; __syncthreads_or(any ? 1 : 0) != 0; ++level) {
    any = false;
    each_node(n, [&](node_id u) {
      if (drafted.depth[u] != level) return;
      const node_id above = node_of[drafted.parent[u]];
      if (above == no_node) return;
      node_of[u] = merged.view().find_child(above, drafted.token[u]);
      any = any || node_of[u] != no_node;
    });
  }
  std::int32_t n_new = 0;
  for (std::int32_t first = 0; first < n; first += merge_threads) {
    const node_id u = first + static_cast<node_id>(threadIdx.x);
    const bool is_new = u < n && node_of[u] == no_node;
    const running_sum found = sum_before(is_new ? 1 : 0, sums);
    if (is_new && n_new + found.before < left) node_of[u] = n_known + n_new + found.before;
    n_new += found.all;
    __syncthreads();
  }
  return n_new < left ? n_new : left;
}

// Adds the drafted nodes whose numbers are n_known or more, as appending one after the other would.
__device__ inline void add_merged(const tree_writer& merged, const tree_writer& drafted, const node_id* node_of,
                                  std::int32_t n_known) {
  const std::int32_t n = drafted.size->n_nodes;
  // Sums along paths are the drafted tree's where nothing was there before; else they follow the level above.
  const bool is_first = n_known == 1;
  bool goes_on = true;
  for (std::int32_t level = 1; __syncthreads_or(goes_on ? 1 : 0) != 0; ++level) {
    goes_on = false;
    each_node(n, [&](node_id u) {
      const node_id node = node_of[u];
      const std::int32_t depth = drafted.depth[u];
      if (node < n_known || depth < level) return;
      if (depth > level && !is_first) {
        goes_on = true;
        return;
      }
      const node_id above = node_of[drafted.parent[u]];
      const float log_prob = drafted.log_prob[u];
      merged.put(node, above, drafted.token[u], log_prob, depth,
                 is_first ? drafted.path_log_prob[u] : merged.path_log_prob[above] + log_prob);
    });
  }
  each_node(n, [&](node_id u) {
    const node_id node = node_of[u];
    if (node == no_node) return;
    std::int32_t first = node < n_known ? merged.first_draw[node] : -1;
    std::int32_t last = node < n_known ? merged.last_draw[node] : -1;
    for (const node_id child : drafted.view().draws(u)) {
      if (node_of[child] < n_known) continue;
      const std::int32_t draw = node_of[child] - 1;
      merged.drawn_node[draw] = node_of[child];
      merged.next_draw[draw] = -1;
      (last < 0 ? first : merged.next_draw[last]) = draw;
      last = draw;
    }
    merged.first_draw[node] = first;
    merged.last_draw[node] = last;
  });
}

// The tree becomes another one, which may have as many nodes.
__device__ inline void copy_tree(const tree_writer& to, const tree_writer& from) {
  each_node(from.size->n_nodes, [&](node_id u) {
    to.put(u, from.parent[u], from.token[u], from.log_prob[u], from.depth[u], from.path_log_prob[u]);
    to.first_draw[u] = from.first_draw[u];
    to.last_draw[u] = from.last_draw[u];
  });
  each_node(from.size->n_draws, [&](std::int32_t draw) {
    to.next_draw[draw] = from.next_draw[draw];
    to.drawn_node[draw] = from.drawn_node[draw];
  });
  if (threadIdx.x == 0) *to.size = *from.size;
}

// One block a lane: what a policy has drafted joins the merged tree, and `was` notes which of its drafter's nodes that
// was. Then the text's tree is the root again, for the next policy; or after the last one the merged tree.
//
// Shapes: was [places][stride], drafted.was likewise: where the policy has built its tree anew, else nullptr
template <class RoomT>
ESPALIER_KERNEL void __launch_bounds__(merge_threads)
    merge_part(text_batch texts, merged_trees to, moved_nodes drafted_was, node_id* was, RoomT next, bool is_last) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  auto& sums = *reinterpret_cast<warp_sums*>(shared_memory());
  const tree_writer merged = to.tree(here.place);
  node_id* const node_of = to.node_of + static_cast<std::ptrdiff_t>(here.place) * to.stride;
  was += static_cast<std::ptrdiff_t>(here.place) * to.stride;
  const std::int32_t n = here.tree.size->n_nodes;
  each_node(to.stride, [&](node_id node) { was[node] = no_node; });
  const std::int32_t n_known = merged.size->n_nodes;
  const std::int32_t n_added = find_merged(merged, here.tree, node_of, sums);
  add_merged(merged, here.tree, node_of, n_known);
  each_node(n, [&](node_id u) {
    if (node_of[u] != no_node) was[node_of[u]] = drafted_was.was == nullptr ? u : drafted_was.of(here.place)[u];
  });
  if (threadIdx.x == 0) merged.size->n_nodes += n_added, merged.size->n_draws += n_added;
  __syncthreads();
  if (is_last) {
    copy_tree(here.tree, merged);
  } else if (threadIdx.x == 0) {
    here.tree.reset(merged.token[root_node], next.limit(here, merged.limit()));
  }
}

}  // namespace espalier::cuda::detail
