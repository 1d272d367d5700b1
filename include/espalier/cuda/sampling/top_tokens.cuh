// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/sampling/row_scan.cuh"
#include "espalier/cuda/sampling/row_selection.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/sampling/exponential.hpp"

namespace espalier::cuda {

//! Lists of the most probable tokens of rows, in the memory of the device.
//!
//! Shapes      tokens, log_probs: [n_rows][k], most probable first; entries past the end of a list are token 0 and log
//!             probability minus infinity. counts [n_rows]: the length of each list. log_totals [n_rows]: the log of
//!             the sum of e^(logit / temperature), NaN for a refused row. counts and log_totals may be nullptr, and are
//!             not written then. of_blocks writes [places][n_rows] instead of [n_rows]
struct token_lists {
  token_id* tokens = nullptr;
  float* log_probs = nullptr;
  std::int32_t* counts = nullptr;
  double* log_totals = nullptr;
  std::int32_t k = 0;
};

namespace detail {

struct top_tokens_memory {
  selection_memory selection;
  double log_total;
  std::uint32_t first_fault;  // the first token whose logit is NaN or plus infinity
};

// The dynamic shared memory of a thread block, as offsets: top_tokens_memory; the masses and references (see exp_sum)
// of the blocks of numbers that this thread block reads, and those of all blocks of the row; the maxima of
// row_selection.
struct top_tokens_layout {
  std::size_t own_masses, own_references, masses, references, maxima, bytes;

  static top_tokens_layout of(const row_share& share) {
    const auto own = static_cast<std::size_t>(share.own_blocks());
    // If a team has one thread block, this reads all blocks of the row: its own arrays are those of the row.
    const auto all = share.team_blocks > 1 ? static_cast<std::size_t>(share.n_blocks) : 0;
    top_tokens_layout layout{};
    layout.own_masses = sizeof(top_tokens_memory);
    layout.masses = all > 0 ? layout.own_masses + own * sizeof(double) : layout.own_masses;
    layout.own_references = layout.own_masses + (own + all) * sizeof(double);
    layout.references = all > 0 ? layout.own_references + own * sizeof(float) : layout.own_references;
    layout.maxima = layout.own_references + (own + all) * sizeof(float);
    layout.bytes = layout.maxima + static_cast<std::size_t>(share.own_maxima()) * sizeof(std::uint32_t);
    return layout;
  }
};

// Returns the log of the sum of exponentials of a row, from the masses of all its blocks. Called by one warp.
__device__ inline double log_of_masses(std::int32_t n_blocks, const double* masses, const float* references) {
  espalier::detail::exp_sum sum;
  for (auto block = static_cast<std::int32_t>(threadIdx.x % 32); block < n_blocks; block += 32)
    sum += {static_cast<double>(references[block]), masses[block]};
  for (int half = 16; half > 0; half /= 2)
    sum += {__shfl_xor_sync(all_lanes, sum.reference, half), __shfl_xor_sync(all_lanes, sum.sum, half)};
  return sum.log(static_cast<double>(espalier::detail::scaled_exp_at_0));
}

// The rows of a launch that get lists: the first n_rows of the `length` rows of each lane. Shapes: place_of [lanes];
// tokens [vocab]: the token of each number of a row, or nullptr
struct listed_rows {
  const std::int32_t* place_of;
  std::int32_t length;
  std::int32_t n_rows;
  const token_id* tokens;

  __device__ token_id token(token_id column) const { return tokens != nullptr ? tokens[column] : column; }
};

// Finds the lists of one launch: team x of grid row y works for row x of lane y.
template <class LogitT>
ESPALIER_KERNEL __launch_bounds__(row_threads, 1) void top_tokens_kernel(vocab_rows<LogitT> logits, listed_rows rows,
                                                                         float scale, row_share share,
                                                                         top_tokens_layout layout, token_lists out,
                                                                         fault* found, row_origin from) {
  const auto lane_of_texts = static_cast<std::int32_t>(blockIdx.y);
  const std::int32_t place = rows.place_of == nullptr ? lane_of_texts : rows.place_of[lane_of_texts];
  if (place < 0) return;
  const team who;
  unsigned char* bytes = shared_memory();
  auto& memory = *reinterpret_cast<top_tokens_memory*>(bytes);
  auto* own_masses = reinterpret_cast<double*>(bytes + layout.own_masses);
  auto* own_references = reinterpret_cast<float*>(bytes + layout.own_references);
  const std::int32_t row = place * rows.n_rows + team::number();
  const row_reader<LogitT> reader(logits.at(lane_of_texts * rows.length + team::number()), logits.vocab, scale);
  row_selection<LogitT> selection(reader, who, share, memory.selection,
                                  reinterpret_cast<std::uint32_t*>(bytes + layout.maxima));
  selection.open();
  if (threadIdx.x == 0) memory.first_fault = UINT32_MAX;
  __syncthreads();

  const auto lane = static_cast<std::int32_t>(threadIdx.x % 16),
             half = static_cast<std::int32_t>(threadIdx.x % 32 / 16);
  const auto warp = static_cast<std::int32_t>(threadIdx.x / 32), n_warps = static_cast<std::int32_t>(blockDim.x / 32);
  float largest = -INFINITY;
  for (std::int32_t pair = warp; pair < share.own_pairs(who.block()); pair += n_warps) {
    const std::int32_t own = 2 * pair + half, block = share.block_at(who.block(), own);
    const block_mass scanned = scan_block(reader, block, lane, largest,
                                          [&](std::int32_t quarter, float x) { selection.put(own, quarter, lane, x); });
    if (lane > 0) continue;
    own_masses[own] = scanned.mass;
    own_references[own] = scanned.from;
    if (!(scanned.mass >= 0)) {
      std::int32_t t = block * static_cast<std::int32_t>(espalier::detail::mass_block);
      while (reader[t] < INFINITY)
        ++t;
      atomicMin(&memory.first_fault, static_cast<std::uint32_t>(t));
    }
  }
  selection.put_largest(largest);
  who.sync();

  auto* masses = reinterpret_cast<double*>(bytes + layout.masses);
  auto* references = reinterpret_cast<float*>(bytes + layout.references);
  for (auto block = static_cast<std::int32_t>(threadIdx.x); block < share.n_blocks;
       block += static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t rank = share.rank_of(block), own = share.own_of(block);
    masses[block] = who.in_block(rank, own_masses)[own];
    references[block] = who.in_block(rank, own_references)[own];
  }
  const std::uint32_t first_fault = __reduce_min_sync(all_lanes, who.of_block_by_lane(&memory.first_fault, UINT32_MAX));
  const float best = selection.largest();
  const bool is_faulty = first_fault != UINT32_MAX || best == -INFINITY;
  const auto set_log_total = [&] {
    if (warp < n_warps - 1) return;
    const double log_total = log_of_masses(share.n_blocks, masses, references);
    if (threadIdx.x % 32 == 0) memory.log_total = log_total;
  };
  std::int32_t n = 0;
  if (!is_faulty && out.k > 0) n = selection.find(out.k, -FLT_MAX, best, set_log_total);
  const auto leaving = who.arrive();
  if (!is_faulty && out.k == 0) {
    __syncthreads();
    set_log_total();
    __syncthreads();
  }
  if (!is_faulty) {
    const double log_total = memory.log_total;
    if (out.k > 0) {
      selection.rank(n, out.k, [&](std::int32_t rank, std::uint64_t key) {
        const std::ptrdiff_t at = static_cast<std::ptrdiff_t>(row) * out.k + rank;
        const double log_prob = static_cast<double>(number_of(key)) - log_total;
        out.tokens[at] = rows.token(token_of(key));
        out.log_probs[at] = static_cast<float>(log_prob > 0 ? 0 : log_prob < -FLT_MAX ? -FLT_MAX : log_prob);
      });
    }
    if (out.log_totals != nullptr && who.block() == 0 && threadIdx.x == 0) out.log_totals[row] = log_total;
  }
  if (who.block() == 0) {
    n = ::min(n, out.k);
    for (std::int32_t i = n + static_cast<std::int32_t>(threadIdx.x); i < out.k;
         i += static_cast<std::int32_t>(blockDim.x)) {
      out.tokens[static_cast<std::ptrdiff_t>(row) * out.k + i] = 0;
      out.log_probs[static_cast<std::ptrdiff_t>(row) * out.k + i] = -INFINITY;
    }
    if (threadIdx.x == 0) {
      if (out.counts != nullptr) out.counts[row] = n;
      if (is_faulty && out.log_totals != nullptr) out.log_totals[row] = static_cast<double>(NAN);
      if (is_faulty) {
        const auto t = first_fault == UINT32_MAX ? 0 : static_cast<token_id>(first_fault);
        report(found + place, {first_fault == UINT32_MAX ? fault::kind::no_token : fault::kind::bad_logit,
                               from.numbered(team::number()), rows.token(t), reader[t]});
      }
    }
  }
  who.wait(leaving);  // the other blocks may still read the keys that this block has found
}

}  // namespace detail

//! Finds the most probable tokens of many rows of logits with their log probabilities, and the log of the sum that
//! normalises each row: the device's espalier::top_tokens. A cluster of eight blocks works on a row, one block if
//! there are no clusters, or for a vocabulary of at most 8192 tokens.
//!
//! LogitT is float, __half or __nv_bfloat16.
//!
//! Complexity  one launch; the logits are read once from memory, and some groups of 16 of them once more, from the
//!             caches: at least k, and up to 512, or 2 k if that is more. Ties and neighbours that are all large cost
//!             further reads of these groups, never a sort of the row. Some 25 operations a number, three waits of the
//!             cluster. Uses the blocks' shared memory alone; no synchronisation
//! Law         tokens, log probabilities and log totals are bit for bit those of
//!             `espalier::top_tokens<float>::of_logits` on the logits times 1.0F / temperature, if neither compiler
//!             fuses products and sums
//! Errors      option_error for a vocabulary outside 1 to 2^20, k outside 0 to 1024, a temperature outside 0.001 to 100
//!             or rows of another vocabulary; cuda_error; a fault if a logit is NaN or plus infinity or all are minus
//!             infinity: the list of that row is empty. The fault names `from` with the number of the row as index,
//!             in of_blocks counted from the first row of the lane
template <class LogitT>
class top_tokens {
 public:
  static constexpr std::int32_t max_k = detail::row_selection<LogitT>::max_k;

  //! Prepares for rows of this length on the present device.
  explicit top_tokens(std::int32_t vocab) : vocab_(vocab) {
    require_option("vocabulary", vocab, 1, 1 << detail::token_bits);
    tuning_ = detail::row_tuning_here(vocab);
  }

  //! Writes the lists of all rows. A row gets the same list whatever rows are beside it.
  //!
  //! Shapes      logits [n_rows][vocab], at any address; out as token_lists
  void of_logits(vocab_rows<LogitT> logits, float temperature, const token_lists& out, fault* found, row_origin from,
                 cudaStream_t stream) const {
    require_option("temperature", temperature, 0.001F, 100.0F);
    run(logits, {nullptr, logits.n_rows, logits.n_rows, nullptr}, 1, 1.0F / temperature, out, found, from, stream);
  }

  //! Writes the lists of the first n_rows rows of each lane's block, at temperature 1. `out` has lists by place.
  //! Columns with equal logits are in the order of columns.
  void of_blocks(const text_batch& texts, const block_rows<LogitT>& blocks, std::int32_t n_rows, const token_lists& out,
                 row_origin from, cudaStream_t stream) const {
    run(blocks.logits, {texts.place_of, blocks.length, n_rows, blocks.tokens}, texts.n, 1.0F, out, blocks.found, from,
        stream);
  }

 private:
  void run(const vocab_rows<LogitT>& logits, const detail::listed_rows& rows, std::int32_t n_lanes, float scale,
           const token_lists& out, fault* found, row_origin from, cudaStream_t stream) const {
    require_option("k", out.k, 0, max_k);
    require_option("logits' vocabulary", logits.vocab, vocab_, vocab_);
    if (rows.n_rows == 0) return;
    const detail::row_share share = detail::row_share::of(vocab_, tuning_.blocks);
    const detail::top_tokens_layout layout = detail::top_tokens_layout::of(share);
    launch("top_tokens", detail::top_tokens_kernel<LogitT>, tuning_.shape(rows.n_rows, layout.bytes, n_lanes), stream,
           logits, rows, scale, share, layout, out, found, from);
  }

  std::int32_t vocab_;
  detail::row_tuning tuning_;
};

}  // namespace espalier::cuda
