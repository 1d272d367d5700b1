// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/tree_policy/growth/append_draws.cuh"
#include "espalier/cuda/tree_policy/growth/append_in_order.cuh"
#include "espalier/cuda/tree_policy/growth/best_of_list.cuh"
#include "espalier/cuda/tree_policy/growth/rebuild_tree.cuh"
#include "espalier/tree_policy/growth/asked_nodes.hpp"

namespace espalier::cuda::detail {

// A prefix among the best so far.
struct step_prefix : considered_node {
  double probability = 0;
  std::int32_t depth = 0;
};

// What there is of a text's best prefixes.
struct prefix_counts {
  std::int32_t n_best;
  std::int32_t n_asked;  // nodes of the level that was asked about
  double expected;       // tokens accepted of the best
};

// The best prefixes of each text while a tree grows from rows, in the memory of the device.
//
// Shapes      best, reach [places][budget]: in order; the probability of the paths to the nodes asked about. counts
//             [places]
struct step_prefixes {
  step_prefix* best;
  double* reach;
  prefix_counts* counts;
  std::int32_t budget;

  __device__ step_prefixes of(std::int32_t place) const {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * budget;
    return {best + first, reach + first, counts + place, budget};
  }
};

template <std::int32_t threadsN>
struct step_memory {
  typename best_of_list<threadsN>::memory best;
  std::int32_t source[threadsN];  // of a new node, which of the best it is
  double expected;
};

// One block a lane: the children of the nodes asked about join the best, and those of the best that are of this depth
// are asked about next, if there is more to gain, as espalier::best_first does. The best are the first of a total
// order: falling probability, then depth, parent and token, which is the order of this list of what was the best and
// the children of each node.
//
// Shapes: children [places][entries][k]; next [places][budget]
template <std::int32_t threadsN, class PrefixesT>
ESPALIER_KERNEL void __launch_bounds__(threadsN)
    take_level(text_batch texts, node_list all_asked, child_lists children, PrefixesT all_prefixes, std::int32_t depth,
               double min_gain, std::int32_t max_asked, node_id* next, std::int32_t n_next) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  auto& memory = *reinterpret_cast<step_memory<threadsN>*>(shared_memory());
  const auto i = static_cast<std::int32_t>(threadIdx.x);
  const tree_writer& tree = here.tree;
  const PrefixesT prefixes = all_prefixes.of(here.place);
  const node_id* const asked = all_asked.of(here.place);
  next += static_cast<std::ptrdiff_t>(here.place) * prefixes.budget;
  const tree_size size = *tree.size;
  const std::int32_t most = size.limit < prefixes.budget ? size.limit : prefixes.budget;
  const bool is_first = depth == 1;
  const prefix_counts before = is_first ? prefix_counts{0, most > 0 ? 1 : 0, 0} : *prefixes.counts;
  if (before.n_asked == 0) {
    for (std::int32_t a = i; a < n_next; a += threadsN)
      next[a] = no_node;
    if (is_first && i == 0) *prefixes.counts = before;
    return;
  }
  const double floor = before.n_best < most ? 0 : prefixes.best[most - 1].probability;
  const auto probability_of = [&](std::int32_t child) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(here.place) * all_asked.n * children.k + child;
    const auto own = static_cast<double>(children.probabilities[at]);
    return (is_first ? 1.0 : prefixes.reach[child / children.k]) * (own < 1 ? own : 1.0);
  };
  best_of_list<threadsN> best(memory.best);
  const std::int32_t n =
      best.find(before.n_best + before.n_asked * children.k, most, [&](std::int32_t at) -> std::uint64_t {
        if (at < before.n_best) return key_of(prefixes.best[at].probability);
        const double probability = probability_of(at - before.n_best);
        return probability > floor ? key_of(probability) : 0;
      });
  best.sort(n);
  step_prefix own;
  if (i < n) {
    const std::int32_t at = best.place(i), child = at - before.n_best;
    if (child < 0) {
      own = prefixes.best[at];
    } else {
      const std::ptrdiff_t of_lists = static_cast<std::ptrdiff_t>(here.place) * all_asked.n * children.k + child;
      own.token = children.tokens[of_lists];
      own.log_prob = children.log_probs[of_lists];
      own.parent = asked[child / children.k];
      own.probability = number_of_key(best.key(i));
      own.depth = depth;
    }
  }
  if (i == 0) {
    double expected = 0;
    for (std::int32_t b = 0; b < n; ++b)
      expected += number_of_key(best.key(b));
    memory.expected = expected;
  }
  __syncthreads();
  const bool goes_on = n_next > 0 && memory.expected - before.expected > min_gain;
  const bool is_asked = goes_on && i < n && own.depth == depth;
  const running_sum sum = sum_before(is_asked ? 1 : 0, memory.best.sums);
  const std::int32_t left = size.left(), of_all = max_asked + 1 - size.n_nodes;
  const std::int32_t room = left < of_all ? left : of_all, n_added = sum.all < room ? sum.all : room;
  if (is_asked && sum.before < n_added) {
    own.node = size.n_nodes + sum.before;
    memory.source[sum.before] = i;
    prefixes.reach[sum.before] = own.probability;
  }
  if (i < n) prefixes.best[i] = own;
  if (i == 0) *prefixes.counts = {n, n_added, memory.expected};
  for (std::int32_t a = i; a < n_next; a += threadsN)
    next[a] = a < n_added ? size.n_nodes + a : no_node;
  __syncthreads();
  listed_draw draw;
  if (i < n_added) {
    const step_prefix& added = prefixes.best[memory.source[i]];
    draw = listed_draw::of(tree, added.parent, added.token, added.log_prob);
  }
  append_in_order(tree, size, n_added, draw, best);
}

// One block a lane: the best are the tree. Shapes: was [places][budget + 1]
template <std::int32_t threadsN, class PrefixesT>
ESPALIER_KERNEL void __launch_bounds__(threadsN) keep_best(text_batch texts, PrefixesT all_prefixes, node_id* was) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  auto& memory = *reinterpret_cast<rebuild_memory<threadsN>*>(shared_memory());
  const PrefixesT prefixes = all_prefixes.of(here.place);
  const std::int32_t n = prefixes.counts->n_best;
  considered_node own;
  if (static_cast<std::int32_t>(threadIdx.x) < n) own = prefixes.best[threadIdx.x];
  rebuild_tree<threadsN>(here.tree, n, own, memory,
                         was + static_cast<std::ptrdiff_t>(here.place) * (prefixes.budget + 1));
}

}  // namespace espalier::cuda::detail
