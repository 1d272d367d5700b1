// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/tree_policy/undrawn_draw.cuh"
#include "espalier/tree_policy/dyspec_greedy.hpp"

namespace espalier::cuda {

namespace detail {

// The nodes of a tree and the next draw of each, in the memory of the device: a queue in which a node has one place.
//
// Shapes      reach, order, n_draws [nodes]; asked, n_pushed [1]
struct draw_queue {
  double* reach;          // the probability that the next draw is looked at; negative: the row has given all it can
  std::int32_t* order;    // of equals, the smaller one is taken first
  std::int32_t* n_draws;  // from this node so far
  node_id* asked;         // whose row is asked for next, or no_node
  std::int32_t* n_pushed;

  // One thread.
  __device__ void push(node_id u, double its_reach) const {
    reach[u] = its_reach;
    order[u] = (*n_pushed)++;
  }
  // The node with the largest reach, the first of equals; no_node where none is left. The whole team.
  __device__ node_id best(std::int32_t n_nodes, const team& who) const {
    double largest = -1;
    for (auto u = static_cast<std::int32_t>(who.rank()); u < n_nodes; u += static_cast<std::int32_t>(who.size()))
      largest = reach[u] > largest ? reach[u] : largest;
    largest = who.reduce(largest, [](double a, double b) { return a < b ? b : a; });
    if (largest < 0) return no_node;
    constexpr auto none = ~0ULL;
    unsigned long long first = none;  // order, then node
    for (auto u = static_cast<std::int32_t>(who.rank()); u < n_nodes; u += static_cast<std::int32_t>(who.size())) {
      if (reach[u] != largest) continue;
      const unsigned long long place = static_cast<unsigned long long>(order[u]) << 32 | static_cast<unsigned>(u);
      first = place < first ? place : first;
    }
    first = who.reduce(first, [](unsigned long long a, unsigned long long b) { return b < a ? b : a; });
    return static_cast<node_id>(first & 0xFFFFFFFFU);
  }
};

template <class TreeT>
ESPALIER_KERNEL void start_draws(TreeT tree, draw_queue queue) {
  *queue.n_pushed = 0;
  queue.n_draws[root_node] = 0;
  queue.push(root_node, 1.0);
  *queue.asked = tree.limit() > 0 ? root_node : no_node;
}

// One team: draws until the budget is spent or the next draw is from a node whose row is not there yet, which is then asked for.
template <class RowsT>
ESPALIER_KERNEL void __launch_bounds__(row_threads)
    draw_until_asking(tree_writer tree, RowsT rows, draw_queue queue, chance_source chance, std::int32_t budget) {
  const node_id asked = *queue.asked;
  if (asked == no_node) return;
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  const std::int32_t limit = tree.limit() < budget ? tree.limit() : budget;
  node_id next = no_node;
  while (tree.size->n_draws < limit) {
    const node_id u = queue.best(tree.size->n_nodes, who);
    if (u == no_node) break;
    const std::int32_t n = queue.n_draws[u];
    if (n == 0 && u != asked) {
      next = u;
      break;
    }
    const float* data = rows.rows.data + static_cast<std::ptrdiff_t>(rows.row_of[u]) * rows.rows.vocab;
    const row_view<float, team> row(data, static_cast<std::size_t>(rows.rows.vocab), who);
    const undrawn_draw drawn = draw_undrawn(tree.view(), u, u, n, row, chance.now());
    who.sync();  // all have looked at queue and tree
    if (who.rank() == 0) {
      const double reach = queue.reach[u];
      queue.reach[u] = -1;
      if (drawn.token >= 0) {
        const node_id child = tree.append(u, drawn.token, drawn.log_prob());
        queue.n_draws[u] = n + 1;
        queue.n_draws[child] = 0;
        const double left = reach * (1 - drawn.share);
        if (left > 0) queue.push(u, left);
        queue.push(child, reach * drawn.share);
      }
    }
    who.sync();
  }
  if (who.rank() == 0) *queue.asked = next;
}

}  // namespace detail

//! espalier::dyspec_greedy on the device: the same tree from the same rows and random numbers.
//!
//! Complexity  `budget` draft passes of one row are launched, each followed by one launch that makes every draw the rows allow and then
//!             finds whom to ask next. As many do work as nodes are drawn from, a third to all of the budget; the others are padding,
//!             which a captured graph runs all the same: a pass of the draft that nobody needs costs what any pass does. Where that
//!             matters, dyspec_threshold has one pass a level. A draw is one or two passes over a row by a cluster, and a look at
//!             all nodes for the next. No allocation after construction, no synchronisation
//! Law         that of espalier::dyspec_greedy
//! Errors      option_error for a budget outside 1 to 1024
//! Source      as espalier::dyspec_greedy. A queue with a place for each node serves as its heap: the same order
class dyspec_greedy {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit dyspec_greedy(dyspec_greedy_options options = {}) : options_(options) {
    require_option("budget", options.budget, 1, 1024);
    const auto nodes = static_cast<std::size_t>(options.budget) + 1;
    reach_ = device_array<double>(nodes);
    words_ = device_array<std::int32_t>(2 * nodes + 2);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  template <StepDrafter DrafterT>
  void grow(tree_writer tree, DrafterT& drafter, chance_source chance, cudaStream_t stream) const {
    const detail::draw_queue queue = places();
    const detail::row_tuning tuning = detail::row_tuning_here(drafter.vocab_size());
    const launch_shape shape{.grid = tuning.blocks,
                             .threads = tuning.threads,
                             .shared_bytes = sizeof(team::memory),
                             .cluster = tuning.blocks};
    launch("start_draws", detail::start_draws<tree_writer>, {}, stream, tree, queue);
    for (std::int32_t i = 0; i < options_.budget; ++i) {
      drafter.propose(tree, {queue.asked, 1}, stream);
      launch("draw_until_asking", detail::draw_until_asking<node_rows<float>>, shape, stream, tree, drafter.rows(),
             queue, chance, options_.budget);
    }
  }

  void observe(tree_writer, const verdict*, cudaStream_t) const {}

 private:
  detail::draw_queue places() const {
    const std::int32_t nodes = options_.budget + 1;
    std::int32_t* words = words_.data();
    return {reach_.data(), words, words + nodes, words + 2 * nodes, words + 2 * nodes + 1};
  }

  dyspec_greedy_options options_;
  device_array<double> reach_;
  device_array<std::int32_t> words_;
};

}  // namespace espalier::cuda
