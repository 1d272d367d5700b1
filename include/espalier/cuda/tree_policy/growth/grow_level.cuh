// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/growth/append_draws.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/tree_policy/growth/append_draws.cuh"

namespace espalier::cuda::detail {

inline constexpr std::int32_t level_threads = 512;              // nodes that a level asks about, at most
inline constexpr std::int32_t level_draws = 2 * level_threads;  // draws from them, at most

struct level_memory {
  cub::BlockScan<std::int32_t, level_threads>::TempStorage scan;
  // By draw: in the upper half the entry of its parent in the list of asked nodes, in the lower half its number among
  // the draws of that parent.
  std::uint32_t place[level_draws];
  std::uint32_t kept[level_draws / 32];  // one bit for each draw
};

// The array in which the nodes to ask about next are listed. Shapes: nodes [places][stride], of which the first n are
// written
struct next_level {
  node_id* nodes;
  std::int32_t n;
  std::int32_t stride;
};

// Grows one level of a tree breadth first; a block works for a lane. Appends the draws from each node of a list, one
// node after the other, until the budget is spent, and lists the new nodes that are asked about next.
//
// StepT has of(place), which gives the step of one text. The step of a text has
//   children                  child_lists of the nodes of the list
//   budget()                  the largest number of draws of the tree
//   n_draws(entry, u)         the number of children that node u gets; u is entry `entry` of the list
//   enter(tree, node, at)     called when a new node, entry `at` of `children`, is in the tree; returns true if the
//                             node may be asked about
//   ask(node, at)             called when that node is listed to be asked about
//
// Pre         the list has at most level_threads entries; budget() is at most level_draws
template <class StepT>
ESPALIER_KERNEL void __launch_bounds__(level_threads)
    grow_level(text_batch texts, StepT steps, node_list all_asked, next_level to) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const tree_writer& tree = here.tree;
  const StepT step = steps.of(here.place);
  const node_id* const asked = all_asked.of(here.place);
  node_id* const next = to.nodes + static_cast<std::ptrdiff_t>(here.place) * to.stride;
  const std::int32_t n_next = to.n;
  auto& memory = *reinterpret_cast<level_memory*>(shared_memory());
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t lane = thread % 32, warp = thread / 32;
  const tree_size size = *tree.size;
  const std::int32_t left = size.left(step.budget());

  // Each thread has an entry of the list.
  const node_id u = thread < all_asked.n ? asked[thread] : no_node;
  const std::int32_t n = u == no_node ? 0 : step.n_draws(thread, u);
  std::int32_t begin = 0, all = 0;
  cub::BlockScan<std::int32_t, level_threads>(memory.scan).ExclusiveSum(n, begin, all);
  const std::int32_t added = all < left ? all : left;
  for (std::int32_t i = begin; i < begin + n && i < added; ++i)
    memory.place[i] = static_cast<std::uint32_t>(thread << 16 | (i - begin));
  __syncthreads();

  // Each thread has a draw.
  const auto slot = [&](std::int32_t i) { return static_cast<std::int32_t>(memory.place[i] & 0xFFFFU); };
  const auto place = [&](std::int32_t i) {
    return static_cast<std::ptrdiff_t>(memory.place[i] >> 16) * step.children.k + slot(i);
  };
  append_draws(tree, size, added, added, added, [&](std::int32_t i) {
    const std::ptrdiff_t at = place(i);
    listed_draw draw =
        listed_draw::of(tree, asked[memory.place[i] >> 16], step.children.tokens[at], step.children.log_probs[at]);
    draw.number = draw.node = i;
    draw.is_first = slot(i) == 0;
    draw.next = i + 1 < added && slot(i + 1) > 0 ? i + 1 : -1;
    return draw;
  });
  const std::int32_t n_words = (added + 31) / 32;
  for (std::int32_t word = warp; word < n_words; word += level_threads / 32) {
    const std::int32_t i = word * 32 + lane;
    const unsigned kept = __ballot_sync(all_lanes, i < added && step.enter(tree, size.n_nodes + i, place(i)));
    if (lane == 0) memory.kept[word] = kept;
  }
  __syncthreads();
  const std::int32_t room = left - added < n_next ? left - added : n_next;  // each listed node adds at least one child
  std::int32_t n_kept = 0;
  for (std::int32_t word = 0; word < n_words; ++word) {
    const std::uint32_t kept = memory.kept[word];
    const std::int32_t i = word * 32 + lane, at = n_kept + __popc(kept & ((1U << lane) - 1));
    if (word % (level_threads / 32) == warp && (kept >> lane & 1U) != 0 && at < room) {
      next[at] = size.n_nodes + i;
      step.ask(size.n_nodes + i, place(i));
    }
    n_kept += __popc(kept);
  }
  for (std::int32_t at = (n_kept < room ? n_kept : room) + thread; at < n_next; at += level_threads)
    next[at] = no_node;
}

// Enqueues grow_level for all lanes.
template <class StepT>
void launch_level(const text_batch& texts, const StepT& step, node_list asked, const next_level& next,
                  cudaStream_t stream) {
  launch("grow_level", grow_level<StepT>,
         {.grid = texts.lanes(), .threads = level_threads, .shared_bytes = sizeof(level_memory)}, stream, texts, step,
         asked, next);
}

}  // namespace espalier::cuda::detail
