// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/tree_policy/undrawn_draw.cuh"

namespace espalier::cuda::detail {

// What dyspec_threshold knows while a tree grows, in the memory of the device.
//
// Shapes      reach, nodes, n_draws: [budget + 1], all nodes that are expanded, level after level: those of this level are begin ..;
//             identity [budget + 1]: 0, 1, ..; asked, n_drawn, first_draw, reach_left: [entries of a level];
//             child_reach, child_log_prob, token, next_draw: [entries][budget], the draws of each entry as a list of its own
struct threshold_state {
  std::int32_t budget;
  double* reach;  // the probability that the next draw from the node is looked at
  double* reach_left;
  double* child_reach;
  float* child_log_prob;
  node_id* nodes;
  std::int32_t* n_draws;
  std::int32_t* identity;
  node_id* asked;
  std::int32_t* n_drawn;
  std::int32_t* first_draw;
  token_id* token;
  std::int32_t* next_draw;
  std::int32_t* begin;
  std::int32_t* end;

  __device__ std::ptrdiff_t list(std::int32_t entry) const { return static_cast<std::ptrdiff_t>(entry) * budget; }
  __device__ std::int32_t left(const tree_size& size) const {
    const std::int32_t limit = size.limit < budget ? size.limit : budget;
    return limit > size.n_draws ? limit - size.n_draws : 0;
  }
  // The draws of an entry as those of a tree's root.
  __device__ tree_view draws_of(std::int32_t entry) const {
    tree_view view;
    view.token = token + list(entry);
    view.first_draw = first_draw + entry;
    view.next_draw = next_draw + list(entry);
    view.drawn_node = identity;
    return view;
  }
};

__device__ inline bool is_needed(double reach, double threshold) {
  return reach > 0 && reach >= threshold;
}

template <class TreeT>
ESPALIER_KERNEL void start_threshold(TreeT tree, threshold_state state) {
  for (std::int32_t i = 0; i <= state.budget; ++i)
    state.identity[i] = i;
  state.nodes[0] = root_node;
  state.reach[0] = 1;
  *state.begin = 0;
  *state.end = 1;
  *state.asked = state.left(*tree.size) > 0 ? root_node : no_node;
}

// A team an entry of the list: every draw that is needed, while the tree stays as it is.
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(row_threads)
    draw_level(tree_writer tree, RowsT rows, threshold_state state, chance_source chance, double threshold) {
  const auto entry = static_cast<std::int32_t>(blockIdx.x / cluster_blocks());
  const node_id u = state.asked[entry];
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  if (who.rank() == 0) {
    state.n_drawn[entry] = 0;
    state.first_draw[entry] = -1;
  }
  who.sync();
  if (u == no_node) return;
  const float* data = rows.rows.data + static_cast<std::ptrdiff_t>(rows.row_of[u]) * rows.rows.vocab;
  const row_view<float, team> row(data, static_cast<std::size_t>(rows.rows.vocab), who);
  const std::int32_t left = state.left(*tree.size);
  const std::ptrdiff_t list = state.list(entry);
  double reach = state.reach[*state.begin + entry];
  std::int32_t n = 0;
  while (n < left && is_needed(reach, threshold)) {
    const undrawn_draw drawn = draw_undrawn(state.draws_of(entry), root_node, u, n, row, chance.now());
    if (drawn.token < 0) {
      reach = 0;
      break;
    }
    who.sync();  // all have looked at the list
    if (who.rank() == 0) {
      state.token[list + n] = drawn.token;
      state.child_log_prob[list + n] = drawn.log_prob();
      state.child_reach[list + n] = reach * drawn.share;
      state.next_draw[list + n] = -1;
      (n == 0 ? state.first_draw[entry] : state.next_draw[list + n - 1]) = n;
    }
    who.sync();
    reach *= 1 - drawn.share;
    ++n;
  }
  if (who.rank() != 0) return;
  state.n_drawn[entry] = n;
  state.reach_left[entry] = reach;
}

inline constexpr std::int32_t append_threads = 512;

struct append_memory {
  cub::BlockScan<std::int32_t, append_threads>::TempStorage scan;
};

// One block, a thread an entry of the list: makes nodes of what was drawn, as if one draw after the other had been appended, and lists
// whom to ask next.
template <class TreeT>
ESPALIER_KERNEL void __launch_bounds__(append_threads)
    append_level(TreeT tree, threshold_state state, double threshold, std::int32_t n_entries, std::int32_t n_next) {
  using scan = cub::BlockScan<std::int32_t, append_threads>;
  auto& memory = *reinterpret_cast<append_memory*>(shared_memory());
  const auto i = static_cast<std::int32_t>(threadIdx.x);
  const tree_size size = *tree.size;
  const std::int32_t begin = *state.begin, end = *state.end, left = state.left(size);
  const std::int32_t n_asked = end - begin < left ? end - begin : left;
  const node_id u = i < n_entries ? state.asked[i] : no_node;
  const std::ptrdiff_t list = state.list(i);
  std::int32_t n = u == no_node ? 0 : state.n_drawn[i];
  std::int32_t before = 0, all = 0;
  scan(memory.scan).ExclusiveSum(n, before, all);
  __syncthreads();
  n = before + n < left ? n : (before < left ? left - before : 0);
  std::int32_t kept = 0;
  for (std::int32_t c = 0; c < n; ++c) {
    const node_id node = size.n_nodes + before + c;
    const std::int32_t draw = size.n_draws + before + c;
    const float log_prob = state.child_log_prob[list + c];
    tree.token[node] = state.token[list + c];
    tree.parent[node] = u;
    tree.depth[node] = tree.depth[u] + 1;
    tree.log_prob[node] = log_prob;
    tree.path_log_prob[node] = tree.path_log_prob[u] + log_prob;
    tree.first_draw[node] = tree.last_draw[node] = -1;
    tree.drawn_node[draw] = node;
    tree.next_draw[draw] = c + 1 < n ? draw + 1 : -1;
    kept += is_needed(state.child_reach[list + c], threshold) ? 1 : 0;
  }
  if (n > 0) {
    tree.first_draw[u] = size.n_draws + before;
    tree.last_draw[u] = size.n_draws + before + n - 1;
  }
  if (u != no_node) {
    state.reach[begin + i] = state.reach_left[i];
    state.n_draws[begin + i] = n;
  }
  std::int32_t kept_before = 0, all_kept = 0;
  scan(memory.scan).ExclusiveSum(kept, kept_before, all_kept);
  for (std::int32_t c = 0, at = end + kept_before; c < n; ++c) {
    if (!is_needed(state.child_reach[list + c], threshold)) continue;
    state.nodes[at] = size.n_nodes + before + c;
    state.reach[at++] = state.child_reach[list + c];
  }
  __syncthreads();
  const std::int32_t added = all < left ? all : left;
  const std::int32_t next_begin = begin + n_asked, next_end = end + all_kept;
  const std::int32_t room = left - added < n_next ? left - added : n_next;  // each node adds at least one child
  const std::int32_t listed = next_end - next_begin < room ? next_end - next_begin : room;
  for (std::int32_t at = i; at < n_next; at += append_threads)
    state.asked[at] = at < listed ? state.nodes[next_begin + at] : no_node;
  if (i != 0) return;
  *state.begin = next_begin;
  *state.end = next_end;
  tree.size->n_nodes = size.n_nodes + added;
  tree.size->n_draws = size.n_draws + added;
}

// One team: further draws from the rows that are there, the one most likely to be needed first, until the budget is spent.
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(row_threads)
    fill_tree(tree_writer tree, RowsT rows, threshold_state state, chance_source chance) {
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  const std::int32_t n_asked = *state.begin;
  while (state.left(*tree.size) > 0) {
    double reach = 0;
    for (auto i = static_cast<std::int32_t>(who.rank()); i < n_asked; i += static_cast<std::int32_t>(who.size()))
      reach = reach < state.reach[i] ? state.reach[i] : reach;
    reach = who.reduce(reach, [](double a, double b) { return a < b ? b : a; });
    if (!(reach > 0)) return;
    std::int32_t first = n_asked;
    for (auto i = static_cast<std::int32_t>(who.rank()); i < n_asked; i += static_cast<std::int32_t>(who.size()))
      first = i < first && state.reach[i] == reach ? i : first;
    first = who.reduce(first, [](std::int32_t a, std::int32_t b) { return b < a ? b : a; });
    const node_id u = state.nodes[first];
    const std::int32_t n = state.n_draws[first];
    const float* data = rows.rows.data + static_cast<std::ptrdiff_t>(rows.row_of[u]) * rows.rows.vocab;
    const row_view<float, team> row(data, static_cast<std::size_t>(rows.rows.vocab), who);
    const undrawn_draw drawn = draw_undrawn(tree.view(), u, u, n, row, chance.now());
    who.sync();  // all have looked at state and tree
    if (who.rank() == 0) {
      state.reach[first] = drawn.token < 0 ? 0 : reach * (1 - drawn.share);
      state.n_draws[first] = n + 1;
      if (drawn.token >= 0) tree.append(u, drawn.token, drawn.log_prob());
    }
    who.sync();
  }
}

}  // namespace espalier::cuda::detail
