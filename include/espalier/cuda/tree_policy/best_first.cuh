// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/block_rows.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/sampling/top_tokens.cuh"
#include "espalier/cuda/tree_policy/best_first/prefix_heap.cuh"
#include "espalier/cuda/tree_policy/best_first/prefix_levels.cuh"
#include "espalier/cuda/tree_policy/best_first/prefix_nodes.cuh"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/best_first/marginal_heap.hpp"

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

  //! By reckoning, for all of compute capability 8.0 and later: a step of the heap is a chain of about 200 cycles and
  //! there is one for each drafted token; a level is a chain of about 1300 and there are at most max_depth. See
  //! docs/algorithms/device.md.
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

__device__ inline std::int32_t prefixes_wanted(const tree_writer& tree, std::int32_t budget) {
  return tree.limit() < budget ? tree.limit() : budget;
}

// A block a lane. The heap is of one warp. After the memory come the lists' log-probabilities, where there is room for them.
template <class MemoryT, std::int32_t threadsN>
ESPALIER_KERNEL void __launch_bounds__(threadsN)
    best_first_by_block(text_batch texts, prefix_lists all_lists, std::int32_t budget, bool has_room) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const tree_writer& tree = here.tree;
  const prefix_lists lists = all_lists.of(here.place);
  constexpr bool by_levels = !std::is_same_v<MemoryT, prefix_heap_memory>;
  auto& memory = *reinterpret_cast<MemoryT*>(shared_memory());
  auto& shared = reinterpret_cast<prefix_heap_memory&>(memory);
  const std::int32_t wanted = prefixes_wanted(tree, budget);
  if (wanted <= 0) return;
  const float* log_probs = lists.log_probs;
  if (has_room) {
    auto* copy = reinterpret_cast<float*>(&memory + 1);
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < lists.n_rows * lists.n_ranks; i += threadsN)
      copy[i] = lists.log_probs[i];
    log_probs = copy;
    __syncthreads();
  }
  const prefix_nodes taken{shared.nodes, shared.next_sibling};
  std::int32_t n = -1;
  if constexpr (by_levels) n = prefix_levels(memory.pool, log_probs, lists.n_rows, lists.n_ranks, wanted).take(taken);
  if (n < 0) {
    if (threadIdx.x < 32) {
      n = prefix_heap(shared.leaves, taken).take(log_probs, lists.n_rows, lists.n_ranks, wanted);
      if (threadIdx.x == 0) shared.n = n;
    }
    __syncthreads();
    n = shared.n;
  }
  write_nodes(tree, taken, n, lists);
}

// Launched with one thread a lane.
template <class MemoryT>
ESPALIER_KERNEL void best_first_one_thread(text_batch texts, prefix_lists all_lists, std::int32_t budget) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const tree_writer& tree = here.tree;
  const prefix_lists lists = all_lists.of(here.place);
  auto& memory = *reinterpret_cast<MemoryT*>(shared_memory());
  marginal_heap heap(memory.entries, memory.nodes, memory.buckets);
  const std::int32_t n = heap.take(lists.log_probs, lists.n_rows, lists.n_ranks, prefixes_wanted(tree, budget));
  heap.append(tree, lists.tokens, lists.log_probs, lists.n_ranks, n);
}

}  // namespace detail

//! espalier::best_first over a BlockDrafter, on the device: the same tree, ties included.
//!
//! Complexity  one draft pass, one look at each row, and one launch of one block, which is a chain of O(budget) steps
//!             of a warp or O(max_depth) steps of a block: see best_first_tuning; no allocation after construction, no
//!             synchronisation
//! Law         that of espalier::best_first over blocks
//! Errors      option_error for options out of range; a fault for a block's logits that top_tokens refuses,
//!             also in rows that a full tree does not need
//! Source      as espalier::best_first; the levels are ours, see docs/algorithms/device.md
class best_first {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit best_first(best_first_options options = {}) : best_first(options, best_first_tuning::select(options)) {}

  best_first(best_first_options options, best_first_tuning tuning)
      : options_(require_options(options)), tuning_(tuning) {
    static_assert(option_of(&best_first_options::budget).high() <= detail::max_prefixes);
    if (tuning.threads != 256) require_option("threads", tuning.threads, 1024, 1024);
    if (tuning.method == best_first_method::levels) require_option("budget", options.budget, 1, tuning.threads);
    reserve(1);
    int device = 0, most = 0;
    require(cudaGetDevice(&device), "cudaGetDevice");
    require(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute");
    most_shared_ = static_cast<std::size_t>(most);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  void reserve(std::int32_t max_texts) {
    const auto n = static_cast<std::size_t>(options_.max_depth) * static_cast<std::size_t>(options_.budget);
    tokens_ = device_array<token_id>(n * static_cast<std::size_t>(max_texts));
    log_probs_ = device_array<float>(tokens_.size());
  }

  node_list begin(const text_batch&, cudaStream_t) const { return {root_.data(), 1, 0}; }

  template <class NumberT>
  node_list take(const text_batch& texts, const block_rows<NumberT>& block, cudaStream_t stream) const {
    const std::int32_t n_rows = (std::min)(block.length, options_.max_depth);
    const std::int32_t n_ranks = (std::min)(options_.budget, block.logits.vocab);
    const token_lists out{.tokens = tokens_.data(), .log_probs = log_probs_.data(), .k = n_ranks};
    top_tokens<NumberT>(block.logits.vocab).of_blocks(texts, block, n_rows, out, row_origin::of_block(0), stream);
    take_best(texts, {tokens_.data(), log_probs_.data(), n_rows, n_ranks}, stream);
    return {};
  }

  //! What blocks' rows give, from lists that are there already.
  //!
  //! Pre         lists.n_rows <= max_depth; the trees hold the root alone
  void take_best(const text_batch& texts, const prefix_lists& lists, cudaStream_t stream) const {
    if (lists.n_rows <= 0 || lists.n_ranks <= 0) return;
    if (tuning_.method == best_first_method::one_thread) {
      using memory = detail::one_thread_memory;
      launch("best_first_one_thread", detail::best_first_one_thread<memory>,
             {.grid = texts.lanes(), .shared_bytes = sizeof(memory)}, stream, texts, lists, options_.budget);
    } else if (tuning_.threads == 256) {
      take_by_block<256>(texts, lists, stream);
    } else {
      take_by_block<1024>(texts, lists, stream);
    }
  }

  void observe(const text_batch&, const verdict*, cudaStream_t) const {}

 private:
  template <std::int32_t threadsN>
  void take_by_block(const text_batch& texts, const prefix_lists& lists, cudaStream_t stream) const {
    using detail::best_first_by_block, detail::prefix_heap_memory;
    using levels_memory = detail::prefix_levels_memory<threadsN>;
    const bool by_heap = tuning_.method == best_first_method::heap;
    const std::size_t own = by_heap ? sizeof(prefix_heap_memory) : sizeof(levels_memory);
    const std::size_t rows =
        static_cast<std::size_t>(lists.n_rows) * static_cast<std::size_t>(lists.n_ranks) * sizeof(float);
    const bool has_room = own + rows <= most_shared_;
    launch("best_first",
           by_heap ? best_first_by_block<prefix_heap_memory, threadsN> : best_first_by_block<levels_memory, threadsN>,
           {.grid = texts.lanes(), .threads = threadsN, .shared_bytes = own + (has_room ? rows : 0)}, stream, texts,
           lists, options_.budget, has_room);
  }

  best_first_options options_;
  best_first_tuning tuning_;
  device_array<node_id> root_{std::span(&root_node, 1)};
  device_array<token_id> tokens_;  // [texts][max_depth][budget] of a block
  device_array<float> log_probs_;
  std::size_t most_shared_ = 0;  // bytes of a block
};

}  // namespace espalier::cuda
