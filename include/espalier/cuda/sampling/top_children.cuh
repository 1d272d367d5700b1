// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/row_scan.cuh"
#include "espalier/cuda/sampling/row_selection.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/sampling/log_prob.hpp"

namespace espalier::cuda {

//! Lists of the most probable tokens after each node of a node list, in the memory of the device. List i of a text
//! belongs to entry i of its node list.
//!
//! Shapes      tokens, probabilities, log_probs: [places][nodes][k], most probable first; entries past the end of a
//!             list are token -1, probability 0 and log-probability minus infinity. counts [places][nodes]: the length
//!             of each list. probabilities, log_probs and counts may be nullptr, and are not written then
struct child_lists {
  token_id* tokens = nullptr;
  float* probabilities = nullptr;
  float* log_probs = nullptr;
  std::int32_t* counts = nullptr;
  std::int32_t k = 0;
};

namespace detail {

struct top_children_memory {
  selection_memory selection;
  alignas(16) std::uint32_t maxima[4];  // [own_maxima()] the largest number of each group, or of several
};

// Fills list number `entry` of `out` with empty entries from its entry n on, and writes its length n. Called by a
// block.
__device__ inline void write_no_children(const child_lists& out, std::int32_t entry, std::int32_t n) {
  if (out.counts != nullptr && threadIdx.x == 0) out.counts[entry] = n;
  for (std::int32_t i = n + static_cast<std::int32_t>(threadIdx.x); i < out.k;
       i += static_cast<std::int32_t>(blockDim.x)) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(entry) * out.k + i;
    out.tokens[at] = -1;
    if (out.probabilities != nullptr) out.probabilities[at] = 0;
    if (out.log_probs != nullptr) out.log_probs[at] = -INFINITY;
  }
}

// Finds the lists of one launch: team x of grid row y works for entry x of the node list of lane y.
template <class NumberT>
ESPALIER_KERNEL __launch_bounds__(row_threads, 1) void top_children_kernel(text_batch texts, text_rows all_rows,
                                                                           row_share share, node_list nodes,
                                                                           child_lists out) {
  const std::int32_t place = texts.here().place;
  if (place < 0) return;
  const team who;
  const node_rows<NumberT> rows = all_rows.of(place);
  const std::int32_t entry = place * nodes.n + team::number();
  const node_id u = nodes.of(place)[team::number()];
  if (u == no_node || !rows.has(u)) {
    if (who.block() == 0) write_no_children(out, entry, 0);
    return;
  }
  auto& memory = *reinterpret_cast<top_children_memory*>(shared_memory());
  const row_reader<NumberT> reader(rows.at(u), rows.rows.vocab);
  row_selection<NumberT> selection(reader, who, share, memory.selection, memory.maxima);
  selection.open();
  __syncthreads();
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 16),
             half = static_cast<std::int32_t>(threadIdx.x % 32 / 16);
  float largest = 0, largest_of_quarter = 0;
  for (auto pair = static_cast<std::int32_t>(threadIdx.x / 32); pair < share.own_pairs(who.block());
       pair += static_cast<std::int32_t>(blockDim.x / 32)) {
    const std::int32_t own = 2 * pair + half;
    read_block(
        reader, share.block_at(who.block(), own), lane,
        [&](const float(&x)[4], std::int32_t) {
          for (const float p : x)
            largest_of_quarter = fmaxf(largest_of_quarter, p);
        },
        [&](std::int32_t quarter) {
          selection.put(own, quarter, lane, largest_of_quarter);
          largest = fmaxf(largest, largest_of_quarter);
          largest_of_quarter = 0;
        });
  }
  selection.put_largest(largest);
  who.sync();

  constexpr float least = 1.401298464e-45F;
  const float best = selection.largest();
  const std::int32_t n = best > 0 ? selection.find(out.k, least, best, [] {}) : 0;
  const auto leaving = who.arrive();
  selection.rank(n, out.k, [&](std::int32_t rank, std::uint64_t key) {
    const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(entry) * out.k + rank;
    const float p = number_of(key);
    out.tokens[at] = token_of(key);
    if (out.probabilities != nullptr) out.probabilities[at] = p;
    if (out.log_probs != nullptr) out.log_probs[at] = espalier::detail::log_prob_of(static_cast<double>(p));
  });
  if (who.block() == 0) write_no_children(out, entry, ::min(n, out.k));
  who.wait(leaving);  // the other blocks may still read the keys that this block has found
}

}  // namespace detail

//! Finds the most probable tokens after many nodes, from rows of probabilities: the device's espalier::top_k.
//!
//! Complexity  one launch; a cluster of eight blocks works on a node, one block if there are no clusters, or for a
//!             vocabulary of at most 8192 tokens. A row is read once from memory, and about k groups of 16 once more.
//!             Uses shared memory alone; no synchronisation
//! Law         token for token and bit for bit what espalier::top_k finds; log-probabilities are those that trees keep
//! Errors      option_error for a vocabulary outside 1 to 2^20, k outside 1 to 1024 or rows of another vocabulary;
//!             cuda_error
class top_children {
 public:
  static constexpr std::int32_t max_k = detail::row_selection<float>::max_k;

  //! Prepares for rows of this length on the present device.
  explicit top_children(std::int32_t vocab) : vocab_(vocab) {
    require_option("vocabulary", vocab, 1, 1 << detail::token_bits);
    tuning_ = detail::row_tuning_here(vocab);
  }

  //! Writes the list of each node. A node that is no_node or has no row gets an empty list.
  void find(const text_batch& texts, const text_rows& rows, node_list nodes, const child_lists& out,
            cudaStream_t stream) const {
    require_option("k", out.k, 1, max_k);
    require_option("rows' vocabulary", rows.rows.vocab, vocab_, vocab_);
    if (nodes.n == 0) return;
    const detail::row_share share = detail::row_share::of(vocab_, tuning_.blocks);
    const std::size_t bytes = offsetof(detail::top_children_memory, maxima) +
                              static_cast<std::size_t>(share.own_maxima()) * sizeof(std::uint32_t);
    launch("top_children", detail::top_children_kernel<float>, tuning_.shape(nodes.n, bytes, texts.n), stream, texts,
           rows, share, nodes, out);
  }

 private:
  std::int32_t vocab_;
  detail::row_tuning tuning_{};
};

}  // namespace espalier::cuda
