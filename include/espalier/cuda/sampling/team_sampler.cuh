// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/core/error.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/sampling/row_scan.cuh"
#include "espalier/cuda/sampling/row_selection.cuh"
#include "espalier/cuda/sampling/team_nucleus.cuh"
#include "espalier/sampling/exponential.hpp"
#include "espalier/sampling/sampler.hpp"

namespace espalier::cuda {

//! What a team_sampler of these options needs to know beside them: made on the host, by value into kernels.
//!
//! Errors      option_error for a vocabulary outside 1 to 2^20, or a top_k above 1024 that is not the whole vocabulary
struct team_sampler_layout {
  detail::row_share share;
  std::size_t maxima = 0;  //!< where they begin in the memory
  std::size_t bytes = 0;   //!< of shared memory in each block of the team

  //! For teams of this many blocks.
  static team_sampler_layout of(const sampling_options& options, std::int32_t vocab, unsigned blocks);
  //! The same, whatever the options.
  static team_sampler_layout of_any(std::int32_t vocab, unsigned blocks);
};

namespace detail {

struct team_sampler_memory {
  static constexpr std::int32_t max_k = 1024;

  selection_memory selection;
  float numbers[max_k];  // of the tokens that top-k leaves, by token
  token_id tokens[max_k];
};

}  // namespace detail

inline team_sampler_layout team_sampler_layout::of(const sampling_options& options, std::int32_t vocab,
                                                   unsigned blocks) {
  require_option("vocabulary", vocab, 1, 1 << detail::token_bits);
  team_sampler_layout layout{detail::row_share::of(vocab, blocks), sizeof(detail::team_sampler_memory), 0};
  if (options.temperature == 0.0F) return layout;
  const bool has_top_k = options.top_k > 0 && options.top_k < vocab;
  if (has_top_k) require_option("top_k on the device", options.top_k, 1, detail::team_sampler_memory::max_k);
  if (has_top_k || options.top_p < 1.0F) layout.bytes = layout.maxima;
  if (has_top_k) layout.bytes += static_cast<std::size_t>(layout.share.own_maxima()) * sizeof(std::uint32_t);
  return layout;
}

inline team_sampler_layout team_sampler_layout::of_any(std::int32_t vocab, unsigned blocks) {
  return of({.temperature = 1.0F, .top_k = vocab > 1 ? 1 : 0, .top_p = 0.5F}, vocab, blocks);
}

//! Turns rows of logits into probabilities by a team of threads: espalier::sampler on the device, in kernels.
//!
//! LogitT is float, __half or __nv_bfloat16.
//!
//! Complexity  passes over the vocabulary, all but the first from the caches as far as these reach: temperature alone
//!             or with min-p 3 (maximum, exponentials, division); with top-p about eight more, for the cut; with top-k
//!             2 (maxima, zeroes), and a look at about k groups of 16
//! Law         bit for bit the rows of espalier::sampler<float>, where neither compiler fuses products and sums
//! Pre         all threads of the team call the same; blocks of 256 threads or more
template <class LogitT>
class team_sampler {
 public:
  //! `memory`: layout.bytes of shared memory, at the same place in all blocks, aligned to 16 bytes.
  __device__ team_sampler(const sampling_options& options, const team_sampler_layout& layout, const team& who,
                          unsigned char* memory)
      : options_(options),
        layout_(layout),
        who_(who),
        memory_(reinterpret_cast<detail::team_sampler_memory*>(memory)) {}

  //! The token with the largest logit, ties to the lower id; -1 and a fault for a row that espalier::argmax refuses.
  __device__ token_id argmax(const LogitT* logits, std::int32_t vocab, fault* found, const row_origin& row) {
    const std::uint64_t best = scan(detail::row_reader<LogitT>(logits, vocab), false, found, row);
    return best == none ? -1 : detail::token_of(best);
  }

  //! Writes the probabilities of a row, which all threads see afterwards. False, and a fault, for a row that
  //! espalier::sampler refuses: it is not written then.
  //!
  //! Shapes      logits, out: [vocab]
  __device__ bool probabilities(const LogitT* logits, std::int32_t vocab, float* out, fault* found,
                                const row_origin& row) {
    const detail::row_reader<LogitT> reader(logits, vocab);
    const bool is_greedy = options_.temperature == 0.0F;
    const bool has_top_k = !is_greedy && options_.top_k > 0 && options_.top_k < vocab;
    const std::uint64_t best = scan(reader, has_top_k, found, row);
    if (best == none) return false;
    if (is_greedy) {
      const token_id token = detail::token_of(best);
      each_token(vocab, [=](std::int32_t i) { out[i] = i == token ? 1.0F : 0.0F; });
    } else if (has_top_k) {
      take_top(reader, best, out);
    } else {
      distribute(reader, detail::number_of(best), out);
    }
    who_.sync();
    return true;
  }

 private:
  static constexpr std::uint64_t none = 0;
  static constexpr std::uint64_t bad = std::uint64_t{1} << 63;

  template <class FunctionT>
  __device__ void each_token(std::int32_t vocab, const FunctionT& f) const {
    for (auto i = static_cast<std::int32_t>(who_.rank()); i < vocab; i += static_cast<std::int32_t>(who_.size()))
      f(i);
  }

  __device__ detail::row_selection<LogitT> selection(const detail::row_reader<LogitT>& reader) const {
    auto* maxima = reinterpret_cast<std::uint32_t*>(reinterpret_cast<unsigned char*>(memory_) + layout_.maxima);
    return {reader, who_, layout_.share, memory_->selection, maxima};
  }

  // The key of the largest logit; `none`, and a fault, where one is NaN or plus infinity or all are minus infinity.
  // With the maxima for a selection where asked.
  __device__ std::uint64_t scan(const detail::row_reader<LogitT>& reader, bool has_maxima, fault* found,
                                const row_origin& row) {
    const detail::row_share& share = layout_.share;
    if (has_maxima) {
      selection(reader).open();
      __syncthreads();
    }
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 16),
               half = static_cast<std::int32_t>(threadIdx.x % 32 / 16);
    const auto warps = static_cast<std::int32_t>(blockDim.x / 32);
    float best = -INFINITY, best_of_quarter = -INFINITY;
    token_id best_token = 0;
    std::uint64_t first_bad = 0;
    for (auto pair = static_cast<std::int32_t>(threadIdx.x / 32); pair < share.own_pairs(who_.block()); pair += warps) {
      const std::int32_t own = 2 * pair + half;
      detail::read_block(
          reader, share.block_at(who_.block(), own), lane,
          [&](const float(&x)[4], std::int32_t token) {
            for (int a = 0; a < 4; ++a) {
              if (x[a] > best) best_token = token + a;
              best = fmaxf(best, x[a]);
              best_of_quarter = fmaxf(best_of_quarter, x[a]);
              if (!(x[a] < INFINITY) && first_bad == 0)
                first_bad = bad | (detail::token_mask - static_cast<std::uint64_t>(token + a));
            }
          },
          [&](std::int32_t quarter) {
            if (has_maxima) selection(reader).put(own, quarter, lane, best_of_quarter);
            best_of_quarter = -INFINITY;
          });
    }
    if (has_maxima) selection(reader).put_largest(best);
    const std::uint64_t mine = first_bad != 0 ? first_bad : detail::key_of(best, best_token);
    const std::uint64_t largest = who_.reduce(mine, [](std::uint64_t a, std::uint64_t b) { return a < b ? b : a; });
    if (has_maxima) who_.sync();
    const bool is_bad = (largest & bad) != 0;
    if (!is_bad && detail::number_of(largest) > -INFINITY) return largest;
    if (who_.rank() == 0) {
      const token_id token = is_bad ? detail::token_of(largest) : 0;
      report(found, {is_bad ? fault::kind::bad_logit : fault::kind::no_token, row, token, reader[token]});
    }
    return none;
  }

  // The cap keeps 0 * scale at 0 where the quotient overflows.
  __device__ float scale() const { return fminf(1.44269504F / options_.temperature, FLT_MAX); }

  // Temperature, top-p and min-p, over the whole row.
  __device__ void distribute(const detail::row_reader<LogitT>& reader, float best, float* out) {
    const bool has_top_p = options_.top_p < 1.0F;
    const float times = scale(), least = has_top_p ? 0.0F : options_.min_p;
    const double total = who_.sum_of(static_cast<std::size_t>(reader.size()), [=](std::size_t i) {
      const float e = espalier::detail::exp2_of_minus((best - reader[static_cast<std::int32_t>(i)]) * times);
      return out[i] = e < least ? 0.0F : e;
    });
    if (!has_top_p) {
      const auto inverse = static_cast<float>(1.0 / total);
      each_token(reader.size(), [=](std::int32_t i) { out[i] *= inverse; });
      return;
    }
    detail::team_nucleus nucleus(out, reader.size(), who_, memory_->selection);
    detail::team_cut cut = nucleus.find(static_cast<double>(options_.top_p) * total, total);
    if (options_.min_p > cut.least) {
      const float min_p = options_.min_p;
      const double mass = who_.sum_of(static_cast<std::size_t>(reader.size()),
                                      [=](std::size_t i) { return out[i] < min_p ? 0.0F : out[i]; });
      cut = {min_p, detail::every_tie, mass};
    }
    const auto inverse = static_cast<float>(1.0 / cut.mass);
    each_token(reader.size(), [=](std::int32_t i) { out[i] = cut.kept(out[i], i) * inverse; });
  }

  // The same over the k largest, or as many as are above minus infinity. Each block finds them, one writes them.
  __device__ void take_top(const detail::row_reader<LogitT>& reader, std::uint64_t best_key, float* out) {
    each_token(reader.size(), [=](std::int32_t i) { out[i] = 0; });
    const float best = detail::number_of(best_key);
    detail::selection_memory& shared = memory_->selection;
    const std::int32_t n = selection(reader).find(options_.top_k, -FLT_MAX, best > 0 ? best * 0.25F : best * 4 - 16);
    const std::int32_t k = ::min(n, options_.top_k);
    who_.sync();  // the others have read what this block has found; the zeroes are there
    detail::rank_found(shared, 0, n, n, k, [&](std::int32_t rank, std::uint64_t key) { shared.own[rank] = key; });
    __syncthreads();
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < k; i += static_cast<std::int32_t>(blockDim.x)) {
      const token_id token = detail::token_of(shared.own[i]);
      std::int32_t place = 0;
      for (std::int32_t j = 0; j < k; ++j)
        place += detail::token_of(shared.own[j]) < token ? 1 : 0;
      const float number = detail::number_of(shared.own[i]);
      const float e = espalier::detail::exp2_of_minus((best - number) * scale());
      memory_->numbers[place] = options_.top_p == 1.0F && e < options_.min_p ? 0.0F : e;
      memory_->tokens[place] = token;
    }
    __syncthreads();
    if (who_.block() > 0 || threadIdx.x >= 32) return;
    // One warp: there are few.
    const float* numbers = memory_->numbers;
    const auto size = static_cast<std::size_t>(k);
    const double total = detail::one_warp()(0, size, [=](std::size_t i) { return numbers[i]; }).of[0];
    detail::team_cut cut{0, detail::every_tie, total};
    if (options_.top_p < 1.0F) {
      cut = detail::find_short_nucleus(numbers, k, static_cast<double>(options_.top_p) * total, total);
      if (options_.min_p > cut.least) {
        const float min_p = options_.min_p;
        const auto from = [=](std::size_t i) { return numbers[i] < min_p ? 0.0F : numbers[i]; };
        cut = {min_p, detail::every_tie, detail::one_warp()(0, size, from).of[0]};
      }
    }
    const auto inverse = static_cast<float>(1.0 / cut.mass);
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < k; i += 32)
      out[memory_->tokens[i]] = cut.kept(numbers[i], i) * inverse;
  }

  sampling_options options_;
  team_sampler_layout layout_;
  const team& who_;
  detail::team_sampler_memory* memory_;
};

}  // namespace espalier::cuda
