// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text.cuh"
#include "espalier/cuda/sampling/top_tokens.cuh"
#include "espalier/cuda/tree_policy/prefix_heap.cuh"
#include "espalier/cuda/tree_policy/prefix_levels.cuh"
#include "espalier/cuda/tree_policy/prefix_nodes.cuh"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/marginal_heap.hpp"

namespace espalier::cuda {

//! How the best prefixes are found. The tree is the same.
enum class best_first_method {
  one_thread,  //!< the host's heap and the host's appending: what the others are measured against
  heap,        //!< a priority queue of one warp: time in proportion to the budget
  levels,      //!< a whole block, level by level: time in proportion to the depth
};

struct best_first_tuning {
  best_first_method method = best_first_method::levels;
  std::int32_t threads = 1024;  //!< of the block: 256 or 1024; levels: no fewer than the budget

  friend constexpr bool operator==(const best_first_tuning&, const best_first_tuning&) = default;

  //! By reckoning, for all of compute capability 8.0 and later: a step of the heap is a chain of about 200 cycles and there is one for each
  //! drafted token; a level is a chain of about 1300 and there are at most max_depth. See docs/algorithms.md.
  static constexpr best_first_tuning select(const best_first_options& options) {
    const bool is_small = 200 * options.budget < 1300 * options.max_depth;
    return {is_small ? best_first_method::heap : best_first_method::levels, options.budget <= 256 ? 256 : 1024};
  }
};

namespace detail {

struct prefix_heap_memory {
  prefix_node nodes[max_prefixes + 1];
  std::int16_t next_sibling[max_prefixes + 1];
  std::uint32_t leaves[prefix_heap::n_leaves];
  std::int32_t n;
};

template <std::int32_t threadsN>
struct prefix_levels_memory {
  prefix_heap_memory heap;
  prefix_pool<threadsN, 4 * threadsN> pool;
};

struct one_thread_memory {
  std::uint64_t entries[max_prefixes + 1];
  marginal_node nodes[max_prefixes + 1];
  node_id buckets[max_prefixes];
};

// What comes after the memory of a kernel: the lists' log-probabilities, where there is room for them.
template <class MemoryT>
__device__ const float* staged_log_probs(MemoryT& memory, const prefix_lists& lists, bool has_room) {
  if (!has_room) return lists.log_probs;
  auto* copy = reinterpret_cast<float*>(&memory + 1);
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < lists.n_rows * lists.n_ranks;
       i += static_cast<std::int32_t>(blockDim.x))
    copy[i] = lists.log_probs[i];
  __syncthreads();
  return copy;
}

__device__ inline std::int32_t prefixes_wanted(const tree_writer& tree, std::int32_t budget) {
  return tree.limit() < budget ? tree.limit() : budget;
}

// One warp takes, the block reads and writes.
__device__ inline void take_by_heap(prefix_heap_memory& memory, const float* log_probs, const prefix_lists& lists,
                                    std::int32_t wanted) {
  if (threadIdx.x < 32) {
    prefix_heap heap(memory.leaves, {memory.nodes, memory.next_sibling});
    const std::int32_t n = heap.take(log_probs, lists.n_rows, lists.n_ranks, wanted);
    if (threadIdx.x == 0) memory.n = n;
  }
  __syncthreads();
}

template <std::int32_t threadsN>
ESPALIER_KERNEL void __launch_bounds__(threadsN)
    best_first_heap(tree_writer tree, prefix_lists lists, std::int32_t budget, bool has_room) {
  auto& memory = *reinterpret_cast<prefix_heap_memory*>(shared_memory());
  const std::int32_t wanted = prefixes_wanted(tree, budget);
  if (wanted <= 0) return;
  take_by_heap(memory, staged_log_probs(memory, lists, has_room), lists, wanted);
  write_nodes(tree, {memory.nodes, memory.next_sibling}, memory.n, lists);
}

template <std::int32_t threadsN>
ESPALIER_KERNEL void __launch_bounds__(threadsN)
    best_first_levels(tree_writer tree, prefix_lists lists, std::int32_t budget, bool has_room) {
  auto& memory = *reinterpret_cast<prefix_levels_memory<threadsN>*>(shared_memory());
  const std::int32_t wanted = prefixes_wanted(tree, budget);
  if (wanted <= 0) return;
  const float* log_probs = staged_log_probs(memory, lists, has_room);
  const prefix_nodes taken{memory.heap.nodes, memory.heap.next_sibling};
  prefix_levels levels(memory.pool, log_probs, lists.n_rows, lists.n_ranks, wanted);
  std::int32_t n = levels.take(taken);
  if (n < 0) {
    take_by_heap(memory.heap, log_probs, lists, wanted);
    n = memory.heap.n;
  }
  write_nodes(tree, taken, n, lists);
}

// Launched with one thread.
template <class MemoryT>
ESPALIER_KERNEL void best_first_one_thread(tree_writer tree, prefix_lists lists, std::int32_t budget) {
  auto& memory = *reinterpret_cast<MemoryT*>(shared_memory());
  marginal_heap heap(memory.entries, memory.nodes, memory.buckets);
  const std::int32_t n = heap.take(lists.log_probs, lists.n_rows, lists.n_ranks, prefixes_wanted(tree, budget));
  for (std::int32_t i = 1; i <= n; ++i) {
    const marginal_node& node = memory.nodes[i];
    const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(node.depth - 1) * lists.n_ranks + node.rank;
    tree.append(node.parent, lists.tokens[place], lists.log_probs[place]);
  }
}

}  // namespace detail

//! espalier::best_first over a BlockDrafter, on the device: the same tree, ties included.
//!
//! Complexity  one draft pass, one look at each row, and one launch of one block, which is a chain of O(budget) steps of a warp or
//!             O(max_depth) steps of a block: see best_first_tuning; no allocation after construction, no synchronisation
//! Law         that of espalier::best_first over blocks
//! Errors      its options'; what is not finite in a block's logits is a fault
//! Source      as espalier::best_first; the levels are ours, see docs/algorithms.md
class best_first {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit best_first(best_first_options options = {}) : best_first(options, best_first_tuning::select(options)) {}

  best_first(best_first_options options, best_first_tuning tuning) : options_(options), tuning_(tuning) {
    require_option("budget", options.budget, 1, detail::max_prefixes);
    require_option("max_depth", options.max_depth, 1, 64);
    require_option("min_gain", options.min_gain, 0.0, 1.0);
    if (tuning.threads != 256) require_option("threads", tuning.threads, 1024, 1024);
    if (tuning.method == best_first_method::levels) require_option("budget", options.budget, 1, tuning.threads);
    const auto n = static_cast<std::size_t>(options.max_depth) * static_cast<std::size_t>(options.budget);
    tokens_ = device_array<token_id>(n);
    log_probs_ = device_array<float>(n);
    int device = 0, most = 0;
    require(cudaGetDevice(&device), "cudaGetDevice");
    require(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
    most_shared_ = static_cast<std::size_t>(most);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  template <BlockDrafter DrafterT>
  void grow(tree_writer tree, DrafterT& drafter, chance_source, cudaStream_t stream) const {
    auto logits = drafter.propose_block(stream);
    using number = std::remove_cvref_t<decltype(logits.data[0])>;
    logits.n_rows = logits.n_rows < options_.max_depth ? logits.n_rows : options_.max_depth;
    const std::int32_t n_ranks = options_.budget < logits.vocab ? options_.budget : logits.vocab;
    const token_lists out{.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = n_ranks};
    top_tokens<number>(logits.vocab).of_logits(logits, 1.0F, out, drafter.found(), fault::kind::draft_logit, stream);
    take(tree, {tokens_.data(), log_probs_.data(), logits.n_rows, n_ranks}, stream);
  }

  //! What a block's rows give, from lists that are there already.
  //!
  //! Pre         lists.n_rows <= max_depth; the tree holds the root alone
  void take(tree_writer tree, const prefix_lists& lists, cudaStream_t stream) const {
    if (lists.n_rows <= 0 || lists.n_ranks <= 0) return;
    if (tuning_.method == best_first_method::one_thread) {
      using memory = detail::one_thread_memory;
      launch("best_first_one_thread", detail::best_first_one_thread<memory>, {.shared_bytes = sizeof(memory)}, stream,
             tree, lists, options_.budget);
    } else if (tuning_.threads == 256) {
      take_by_block<256>(tree, lists, stream);
    } else {
      take_by_block<1024>(tree, lists, stream);
    }
  }

  void observe(tree_writer, const verdict*, cudaStream_t) const {}

 private:
  template <std::int32_t threadsN>
  void take_by_block(tree_writer tree, const prefix_lists& lists, cudaStream_t stream) const {
    const bool by_heap = tuning_.method == best_first_method::heap;
    const std::size_t own =
        by_heap ? sizeof(detail::prefix_heap_memory) : sizeof(detail::prefix_levels_memory<threadsN>);
    const std::size_t rows =
        static_cast<std::size_t>(lists.n_rows) * static_cast<std::size_t>(lists.n_ranks) * sizeof(float);
    const bool has_room = own + rows <= most_shared_;
    const launch_shape shape{.threads = threadsN, .shared_bytes = own + (has_room ? rows : 0)};
    if (by_heap) {
      launch("best_first_heap", detail::best_first_heap<threadsN>, shape, stream, tree, lists, options_.budget,
             has_room);
    } else {
      launch("best_first_levels", detail::best_first_levels<threadsN>, shape, stream, tree, lists, options_.budget,
             has_room);
    }
  }

  best_first_options options_;
  best_first_tuning tuning_;
  device_array<token_id> tokens_;  // [max_depth][budget] of a block
  device_array<float> log_probs_;  // [max_depth][budget]
  std::size_t most_shared_ = 0;    // bytes of a block
};

}  // namespace espalier::cuda
