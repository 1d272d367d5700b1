// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/top_children.cuh"
#include "espalier/cuda/sampling/top_tokens.cuh"
#include "espalier/cuda/tree_policy/best_first/prefix_levels.cuh"
#include "espalier/cuda/tree_policy/growth/append_draws.cuh"
#include "espalier/cuda/tree_policy/growth/best_of_list.cuh"
#include "espalier/cuda/tree_policy/growth/rebuild_tree.cuh"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/best_first/marginal_heap.hpp"
#include "espalier/tree_policy/growth/asked_nodes.hpp"

namespace espalier::cuda {

namespace detail {

// One of the best prefixes so far.
struct step_prefix : considered_node {
  double probability = 0;
  std::int32_t depth = 0;
};

// The state of a text's growth after a level.
struct prefix_counts {
  std::int32_t n_best;   // number of best prefixes
  std::int32_t n_asked;  // number of nodes that are asked about now
  double expected;       // expected number of accepted tokens of the best prefixes
};

// The best prefixes of each text while a tree grows from rows, in the memory of the device.
//
// Shapes      best [places][budget]: in order; reach [places][budget]: the probabilities of the paths to the nodes that
//             are asked about; counts [places]
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
  std::int32_t source[threadsN];  // by new node: the index of its prefix in step_prefixes::best
  double expected;
};

// Takes one level; a block works for a lane. The best of the old best prefixes and of the children of the nodes that
// were asked about are the new best prefixes. Those of this depth are asked about next if the level has raised the
// expected number of accepted tokens by more than min_gain, as espalier::best_first does. The best are the first of a
// total order: falling probability, then depth, parent and token. For equal probabilities that is the order in which
// they are listed: first the old best prefixes, then the children, node by node.
//
// Shapes      children [places][entries][k]; next [places][budget]
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

// Rebuilds each tree from its best prefixes; a block works for a lane. Shapes: was [places][budget + 1]
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

// The memory of a marginal_heap, which one thread runs, as on the host, if the pool of prefix_levels is too small.
template <std::int32_t threadsN>
struct prefix_heap_memory {
  std::uint64_t entries[threadsN + 1];
  marginal_node nodes[threadsN + 1];
  node_id buckets[threadsN];
};

template <std::int32_t threadsN>
union alignas(16) best_first_memory {
  prefix_pool<threadsN> pool;
  prefix_heap_memory<threadsN> heap;
};

// Copies n floats into shared memory, and waits for this thread's copies. Called by a block; a barrier must follow.
// Pre: `to` is aligned to 16 bytes
template <std::int32_t threadsN>
__device__ void copy_floats(float* to, const float* from, std::int32_t n) {
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t n_fours = reinterpret_cast<std::uintptr_t>(from) % 16 == 0 ? n / 4 : 0;
  for (std::int32_t i = thread; i < n_fours; i += threadsN)
    ptx::copy_async_16(ptx::address_of(to + 4 * i), from + 4 * i, true);
  for (std::int32_t i = 4 * n_fours + thread; i < n; i += threadsN)
    ptx::copy_async_4(ptx::address_of(to + i), from + i, true);
  ptx::copy_async_commit();
  ptx::copy_async_wait<0>();
}

// Grows trees from the marginals of a block; a thread block works for a lane. The log-probabilities of the lists are
// copied to shared memory, after the other data, if there is room for them.
template <std::int32_t threadsN>
ESPALIER_KERNEL void __launch_bounds__(threadsN, 1)
    best_first_by_block(text_batch texts, prefix_lists all_lists, std::int32_t budget, std::int32_t pairs,
                        bool has_room) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const tree_writer& tree = here.tree;
  const prefix_lists lists = all_lists.of(here.place);
  auto& memory = *reinterpret_cast<best_first_memory<threadsN>*>(shared_memory());
  const std::int32_t limit = tree.limit(), wanted = limit < budget ? limit : budget;
  if (wanted <= 0) return;
  const float* log_probs = lists.log_probs;
  if (has_room) {
    auto* copy = reinterpret_cast<float*>(&memory + 1);
    copy_floats<threadsN>(copy, lists.log_probs, lists.n_rows * lists.n_ranks);
    log_probs = copy;
    __syncthreads();
  }
  prefix_levels<threadsN> levels(memory.pool, lists, log_probs, wanted, pairs);
  const std::int32_t n = levels.take();
  if (n >= 0) {
    levels.write(tree, lists, n);
    return;
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  marginal_heap heap(memory.heap.entries, memory.heap.nodes, memory.heap.buckets);
  heap.append(tree, lists.tokens, lists.log_probs, lists.n_ranks,
              heap.take(log_probs, lists.n_rows, lists.n_ranks, wanted));
}

}  // namespace detail

//! The device's espalier::best_first: the same tree, ties included.
//!
//! Complexity  BlockDrafter: one draft pass, one look at each row, and one launch of one block a text, of 256 threads,
//!             or 1024 if the budget is above 256: at most max_depth steps of the block, one after the other. The block
//!             has memory for 4 prefixes a thread; if very many prefixes are equally or almost equally probable, that
//!             may not be enough, and one thread takes O(budget) steps instead.
//!             Memory of 8 * max_depth * budget bytes for each text. StepDrafter: for each of max_depth levels a draft
//!             pass of as many rows as the level may ask about, the budget at most, padding included; a launch that
//!             reads these rows; a launch of one block a text, which looks at up to budget^2 children at most nine
//!             times. At the end one more launch of one block a text. Memory of 12 * budget^2 bytes for each text. No
//!             allocation after reserve or reserve_asked, no synchronisation
//! Law         as espalier::best_first. Probabilities of prefixes below 2^-1022 may round to the same number; which of
//!             these prefixes are kept may differ
//! Errors      option_error for options out of range; cuda_error; a fault for a block's logits that top_tokens refuses,
//!             also in rows that a full tree does not need
//! Source      as espalier::best_first; the levels are ours, see docs/algorithms/device.md
class best_first {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit best_first(best_first_options options = {}) : options_(require_options(options)) {
    static_assert(option_of(&best_first_options::budget).high() <= 1024);
    static_assert(4 * option_of(&best_first_options::budget).high() <= detail::rebuild_memory<1024>::max_asked);
    while (detail::n_pairs_within(pairs_) < options.budget)
      ++pairs_;
    reserve(1);
    most_shared_ = most_shared_bytes();
  }

  std::int32_t max_nodes() const { return options_.budget; }
  std::int32_t max_depth() const { return options_.max_depth; }
  std::int32_t max_asked() const { return options_.max_asked(); }
  moved_nodes was() const { return {was_.data(), options_.budget + 1}; }

  void reserve(std::int32_t max_texts) { reserve_lists(max_texts, options_.max_depth); }
  void reserve_asked(std::int32_t max_texts) {
    const auto texts = static_cast<std::size_t>(max_texts), budget = static_cast<std::size_t>(options_.budget);
    reserve_lists(max_texts, options_.budget);
    probabilities_ = device_array<float>(tokens_.size());
    best_ = device_array<detail::step_prefix>(texts * budget);
    reach_ = device_array<double>(texts * budget);
    counts_ = device_array<detail::prefix_counts>(texts);
    asked_ = device_array<node_id>(texts * budget);
    was_ = device_array<node_id>(texts * (budget + 1));
  }

  node_list begin(const text_batch&, cudaStream_t) {
    depth_ = 1;
    return wanted();
  }

  node_list take(const text_batch& texts, const text_rows& rows, cudaStream_t stream) {
    const node_list asked = wanted();
    const child_lists children{.tokens = tokens_.data(),
                               .probabilities = probabilities_.data(),
                               .log_probs = log_probs_.data(),
                               .k = options_.budget};
    top_children(rows.rows.vocab).find(texts, rows, asked, children, stream);
    if (options_.budget <= 256) {
      take_level<256>(texts, asked, children, stream);
    } else {
      take_level<1024>(texts, asked, children, stream);
    }
    return wanted();
  }

  template <class NumberT>
  node_list take(const text_batch& texts, const block_rows<NumberT>& block, cudaStream_t stream) const {
    const std::int32_t n_rows = (std::min)(block.length, options_.max_depth);
    const std::int32_t n_ranks = (std::min)(options_.budget, block.logits.vocab);
    const token_lists out{.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = n_ranks};
    top_tokens<NumberT>(block.logits.vocab).of_blocks(texts, block, n_rows, out, row_origin::of_block(0), stream);
    take_best(texts, {tokens_.data(), log_probs_.data(), n_rows, n_ranks}, stream);
    return {};
  }

  //! Grows trees from lists of a block's most probable tokens that were made before.
  //!
  //! Pre         lists.n_rows <= max_depth; the trees hold the root alone
  void take_best(const text_batch& texts, const prefix_lists& lists, cudaStream_t stream) const {
    if (lists.n_rows <= 0 || lists.n_ranks <= 0) return;
    if (options_.budget <= 256) {
      take_by_block<256>(texts, lists, stream);
    } else {
      take_by_block<1024>(texts, lists, stream);
    }
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

 private:
  // Allocates lists of the most probable tokens, for n_rows rows of each text.
  void reserve_lists(std::int32_t max_texts, std::int32_t n_rows) {
    tokens_ = device_array<token_id>(static_cast<std::size_t>(max_texts) * static_cast<std::size_t>(n_rows) *
                                     static_cast<std::size_t>(options_.budget));
    log_probs_ = device_array<float>(tokens_.size());
  }

  // Returns the nodes that are asked about now, at depth depth_ - 1. There are at most budget + 2 - depth_ of them,
  // since each level between the root and them has at least one of the best prefixes.
  node_list wanted() const {
    if (depth_ == 1) return {root_.data(), 1, 0};
    const std::int32_t n = depth_ > options_.max_depth ? 0 : (std::max)(options_.budget + 2 - depth_, std::int32_t{0});
    return {asked_.data(), n, options_.budget};
  }

  template <std::int32_t threadsN>
  void take_level(const text_batch& texts, const node_list& asked, const child_lists& children, cudaStream_t stream) {
    const detail::step_prefixes prefixes{best_.data(), reach_.data(), counts_.data(), options_.budget};
    const std::int32_t depth = depth_++;
    launch("take_level", detail::take_level<threadsN, detail::step_prefixes>,
           {.grid = texts.lanes(), .threads = threadsN, .shared_bytes = sizeof(detail::step_memory<threadsN>)}, stream,
           texts, asked, children, prefixes, depth, options_.min_gain, max_asked(), asked_.data(), wanted().n);
    if (wanted().n > 0) return;
    launch("keep_best", detail::keep_best<threadsN, detail::step_prefixes>,
           {.grid = texts.lanes(), .threads = threadsN, .shared_bytes = sizeof(detail::rebuild_memory<threadsN>)},
           stream, texts, prefixes, was_.data());
  }

  template <std::int32_t threadsN>
  void take_by_block(const text_batch& texts, const prefix_lists& lists, cudaStream_t stream) const {
    const std::size_t own = sizeof(detail::best_first_memory<threadsN>);
    const std::size_t rows =
        static_cast<std::size_t>(lists.n_rows) * static_cast<std::size_t>(lists.n_ranks) * sizeof(float);
    const bool has_room = own + rows <= most_shared_;
    launch("best_first", detail::best_first_by_block<threadsN>,
           {.grid = texts.lanes(), .threads = threadsN, .shared_bytes = own + (has_room ? rows : 0)}, stream, texts,
           lists, options_.budget, pairs_, has_room);
  }

  best_first_options options_;
  std::int32_t pairs_ = 1;  // the argument `pairs` of prefix_levels
  device_array<node_id> root_{std::span(&root_node, 1)};
  std::int32_t depth_ = 1;         // depth of the children of the nodes that are asked about
  device_array<token_id> tokens_;  // [texts][max_depth][budget], or [texts][nodes asked about][budget]
  device_array<float> log_probs_;
  // The arrays that reserve_asked allocates.
  device_array<float> probabilities_;           // [texts][nodes asked about][budget]
  device_array<detail::step_prefix> best_;      // [texts][budget]
  device_array<double> reach_;                  // [texts][budget]
  device_array<detail::prefix_counts> counts_;  // [texts]
  device_array<node_id> asked_;                 // [texts][budget]
  device_array<node_id> was_;                   // [texts][budget + 1]
  std::size_t most_shared_ = 0;                 // see most_shared_bytes()
};

}  // namespace espalier::cuda
