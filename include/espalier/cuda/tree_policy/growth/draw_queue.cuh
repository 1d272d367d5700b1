// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/dyspec_greedy.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/undrawn.hpp"

namespace espalier::cuda::detail {

// The next draw of each node of a tree, in the memory of the device: a queue in which a node has one entry.
//
// Shapes      reach, last, order [places][nodes]; n_pushed [places]
struct draw_queue {
  double* reach;                     // the probability that the next draw is looked at; negative: the node has none
  std::int32_t* last;                // number of the last draw from this node, counted from 0; -1 before the first
  std::int32_t size;                 // number of nodes of a text, at most
  std::int32_t* order = nullptr;     // among nodes with equal reach the one with the smallest order is taken first;
                                     // nullptr: the node's number is its order
  std::int32_t* n_pushed = nullptr;  // number of pushes so far; nullptr if `order` is

  // The queue of one text.
  __device__ draw_queue of(std::int32_t place) const {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * size;
    return {reach + first, last + first, size, order == nullptr ? nullptr : order + first,
            n_pushed == nullptr ? nullptr : n_pushed + place};
  }

  // Enters the next draw of a node. Called by one thread.
  __device__ void push(node_id u, double its_reach) const {
    reach[u] = its_reach;
    if (order != nullptr) order[u] = (*n_pushed)++;
  }
  // Returns the node whose next draw has the largest reach, the first of equal ones; no_node if no node has a next
  // draw. Called by the whole team.
  __device__ node_id best(std::int32_t n_nodes, const team& who) const {
    const auto step = static_cast<std::int32_t>(who.size());
    double largest = -1;
    for (auto u = static_cast<std::int32_t>(who.rank()); u < n_nodes; u += step)
      largest = reach[u] > largest ? reach[u] : largest;
    largest = who.reduce(largest, [](double a, double b) { return a < b ? b : a; });
    if (largest < 0) return no_node;
    auto first = ~0ULL;  // order in the upper half, node in the lower half
    for (auto u = static_cast<std::int32_t>(who.rank()); u < n_nodes; u += step) {
      if (reach[u] != largest) continue;
      const auto place =
          static_cast<unsigned long long>(order == nullptr ? u : order[u]) << 32 | static_cast<unsigned>(u);
      first = place < first ? place : first;
    }
    first = who.reduce(first, [](unsigned long long a, unsigned long long b) { return b < a ? b : a; });
    return static_cast<node_id>(first & 0xFFFFFFFFU);
  }
};

// Draws without replacement; a team works for a lane. The draw that is most likely to be looked at comes first. Drawing
// ends when the budget is spent, when no node has a next draw, or when the next draw is from a node whose row is not
// there yet; `next` gets this node, to be asked about, and no_node in the other cases. If the list of nodes
// asked about is empty, new nodes stay leaves, and `next` is not written.
//
// Shapes      next [places]
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(row_threads)
    draw_by_reach(text_batch texts, RowsT all_rows, draw_queue queues, std::int32_t budget, node_list all_asked,
                  node_id* next) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const bool asks = all_asked.n > 0;
  const node_id asked_now = asks ? *all_asked.of(here.place) : no_node;
  if (asks && asked_now == no_node) return;
  const tree_writer& tree = here.tree;
  const node_rows<float> rows = all_rows.of(here.place);
  const draw_queue queue = queues.of(here.place);
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  if (asked_now == root_node) {
    if (who.rank() == 0) {
      *queue.n_pushed = 0;
      queue.last[root_node] = -1;
      queue.push(root_node, 1.0);
    }
    who.sync();
  }
  node_id next_asked = no_node;
  while (tree.size->left(budget) > 0) {
    const node_id u = queue.best(tree.size->n_nodes, who);
    if (u == no_node) break;
    const std::int32_t n = queue.last[u] + 1;
    if (n == 0 && u != asked_now) {
      next_asked = u;
      break;
    }
    const undrawn row(tree.view(), u, row_view(rows, u, who));
    const undrawn_draw drawn = row.draw(here.chance(), {u, n, purpose::draft});
    const double share = drawn.token < 0 ? 0 : row.share(drawn);
    who.sync();  // all threads have read queue and tree
    if (who.rank() == 0) {
      const double reach = queue.reach[u];
      queue.reach[u] = -1;
      if (drawn.token >= 0) {
        const node_id child = tree.append(u, drawn.token, espalier::detail::log_prob_of(drawn.probability));
        queue.last[u] = n;
        queue.last[child] = -1;
        if (reach * (1 - share) > 0) queue.push(u, reach * (1 - share));
        queue.push(child, asks ? reach * share : -1);
      }
    }
    who.sync();
  }
  if (asks && who.rank() == 0) next[here.place] = next_asked;
}

}  // namespace espalier::cuda::detail
