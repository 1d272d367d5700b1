// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/sampling/sampler.cu
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/sampling/row_reader.cuh"
#include "espalier/cuda/sampling/row_scan.cuh"
#include "espalier/cuda/sampling/row_selection.cuh"
#include "espalier/cuda/sampling/row_transform.cuh"
#include "espalier/sampling/exponential.hpp"
#include "espalier/sampling/sampler.hpp"

namespace espalier::cuda {

namespace detail {

// The cut of a row that is sorted by weight, largest first and ties by lower token. All weights above `least` are kept,
// and the weights equal to it whose tokens are at most `last`.
struct team_cut {
  float least;
  token_id last;
  double mass;  // the sum of the weights that are kept
};

// Returns how many of the `equal` weights of size `least` are kept to reach `mass`, if the weights above them sum to
// `above`: as espalier::detail::nucleus decides.
__device__ inline double ties_kept(double mass, double above, double least, double equal) {
  const double ties = ceil((mass - above) / least);
  return ties < equal ? ties : equal;
}

// Returns the cut of at most 1024 weights, which lie in shared memory in order of tokens: bit for bit that of
// espalier::detail::nucleus. `last` is an index into `weights` here. Each warp finds the cut by itself.
//
// Pre         0 < mass < total, where total is the sum of the weights; weights are at most 1
__device__ inline team_cut find_short_nucleus(const float* weights, std::int32_t n, double mass, double total) {
  const auto size = static_cast<std::size_t>(n);
  unsigned low = 1, high = 0x3F800001U;  // one more than the bits of 1
  double above = 0, from_low = total;
  while (high - low > 1) {
    const unsigned middle = low + (high - low) / 2;
    const float least = __uint_as_float(middle);
    const double from =
        one_warp()(0, size, [=](std::size_t i) { return weights[i] < least ? 0.0F : weights[i]; }).of[0];
    const bool reaches = from >= mass;
    (reaches ? low : high) = middle;
    (reaches ? from_low : above) = from;
  }
  const float least = __uint_as_float(low);
  if (low == 1) return {least, every_tie, from_low};
  const auto value = static_cast<double>(least);
  const double ties = ties_kept(mass, above, value, round((from_low - above) / value));
  token_id last = every_tie;
  for (double seen = 0; seen < ties; ++seen) {
    token_id next = every_tie;
    for (auto i = static_cast<token_id>(threadIdx.x % 32); i < n; i += 32) {
      if (weights[i] == least && (seen == 0 || i > last)) next = ::min(next, i);
    }
    last = static_cast<token_id>(__reduce_min_sync(all_lanes, static_cast<unsigned>(next)));
  }
  return {least, last, above + ties * value};
}

// Finds the cut of a row, bit for bit that of espalier::detail::nucleus. The search is by value: each pass over the row
// takes two sums, which tell between which values the last kept weight lies. It ends when few weights are left, which
// are then sorted, or when one value is left, which many tokens may share.
//
// Pre         for mass, total and weights as find_short_nucleus; all threads of the team call find
template <class WeightsT>
class team_nucleus {
 public:
  __device__ team_nucleus(const WeightsT& weights, std::int32_t n, const team& who, selection_memory& memory)
      : weights_(weights), n_(n), who_(who), memory_(memory) {}

  __device__ team_cut find(double mass, double total) {
    mass_ = mass;
    from_low_ = total;
    // In rows of language models the last kept weight mostly lies between these two, 2^-12 and 2^-6.
    for (unsigned a = 0x39800000U, b = 0x3C800000U; !is_few() && high_ - low_ > 1;) {
      probe(a, b);
      a = low_ + (high_ - low_) / 3;
      b = low_ + (high_ - low_) / 3 * 2;
    }
    if (is_few()) low_ = last_of_few(sort_few());
    settle();
    const float least = __uint_as_float(low_);
    const auto value = static_cast<double>(least);
    if (low_ == 1) return {least, every_tie, from_low_};
    const double equal = round((from_low_ - above_) / value);
    const double ties = ties_kept(mass_, above_, value, equal);
    return {least, last_tie(least, ties, equal), above_ + ties * value};
  }

 private:
  static constexpr std::int32_t few = 1024;

  // True if at most `few` weights can lie in [low_, high_), given their sum: none of them is smaller than low_.
  __device__ bool is_few() const { return from_low_ - above_ <= few * static_cast<double>(__uint_as_float(low_)); }

  __device__ void update(unsigned at, double from) {
    if (at <= low_ || at >= high_) return;
    const bool reaches = from >= mass_;
    (reaches ? low_ : high_) = at;
    (reaches ? from_low_ : above_) = from;
  }

  __device__ void probe(unsigned a, unsigned b) {
    a = ::max(a, low_ + 1);
    b = ::max(b, a);
    const WeightsT weights = weights_;
    const float x = __uint_as_float(a), y = __uint_as_float(b);
    const auto sums = who_.sums_of(
        static_cast<std::size_t>(n_), [=](std::size_t i) { return weights(i) < x ? 0.0F : weights(i); },
        [=](std::size_t i) { return weights(i) < y ? 0.0F : weights(i); });
    update(a, sums.of[0]);
    update(b, sums.of[1]);
  }

  // Sorts the weights in [low_, high_), largest first, into memory.own of each block. Returns how many there are.
  __device__ std::int32_t sort_few() {
    if (threadIdx.x == 0) memory_.clear_found();
    __syncthreads();
    for (auto i = static_cast<std::int32_t>(who_.rank()); i < n_; i += static_cast<std::int32_t>(who_.size())) {
      const float weight = weights_(static_cast<std::size_t>(i));
      const unsigned bits = __float_as_uint(weight);
      if (bits < low_ || bits >= high_) continue;
      const std::uint32_t at = atomicAdd(&memory_.n_own, 1U);
      if (at < selection_memory::room) memory_.own[at] = key_of(weight, i);
    }
    who_.sync();
    const std::int32_t n = gather_found(who_, memory_);
    who_.sync();  // the other blocks have read memory.own
    rank_found(memory_, n, n, 0, 1, [this](std::int32_t rank, std::uint64_t key) { memory_.own[rank] = key; });
    __syncthreads();
    return n;
  }

  // Returns the bits of the weight at which the sum of the sorted weights reaches the mass.
  __device__ unsigned last_of_few(std::int32_t n) const {
    return who_.once([&] {
      double from = above_;
      std::int32_t i = 0;
      while (i < n && from < mass_)
        from += static_cast<double>(number_of(memory_.own[i++]));
      return i == 0 ? low_ : __float_as_uint(number_of(memory_.own[i - 1]));
    });
  }

  // Checks the result with sums over the whole row, which decide, as in espalier::detail::nucleus. Searches again, one
  // bit at a time, if they contradict it.
  __device__ void settle() {
    set_masses();
    if (from_low_ >= mass_ && above_ < mass_) return;
    unsigned low = 1, high = 0x3F800001U;
    while (high - low > 1) {
      low_ = low + (high - low) / 2;
      set_masses();
      (from_low_ >= mass_ ? low : high) = low_;
    }
    low_ = low;
    set_masses();
  }
  __device__ void set_masses() {
    const WeightsT weights = weights_;
    const float least = __uint_as_float(low_);
    const auto sums = who_.sums_of(
        static_cast<std::size_t>(n_), [=](std::size_t i) { return weights(i) < least ? 0.0F : weights(i); },
        [=](std::size_t i) { return weights(i) > least ? weights(i) : 0.0F; });
    from_low_ = sums.of[0];
    above_ = sums.of[1];
  }

  // Returns the token of the last kept weight among the weights that equal `least`.
  __device__ token_id last_tie(float least, double ties, double equal) const {
    if (ties >= equal) return every_tie;
    const WeightsT weights = weights_;
    std::int32_t begin = 0, end = n_;
    while (begin < end) {
      const std::int32_t middle = begin + (end - begin) / 2;
      const double count = who_.sum_of(static_cast<std::size_t>(n_), [=](std::size_t i) {
        return weights(i) == least && static_cast<std::int32_t>(i) <= middle ? 1.0F : 0.0F;
      });
      if (count >= ties) {
        end = middle;
      } else {
        begin = middle + 1;
      }
    }
    return begin;
  }

  WeightsT weights_;
  std::int32_t n_;
  const team& who_;
  selection_memory& memory_;
  double mass_ = 0;
  unsigned low_ = 1;             // the bits of a float that the last kept weight reaches
  unsigned high_ = 0x3F800001U;  // the bits of a float that the last kept weight does not reach; at first one more than
                                 // the bits of 1
  double above_ = 0;             // sum of the weights from high_ upwards, less than mass_
  double from_low_ = 0;          // sum of the weights from low_ upwards, at least mass_
};

}  // namespace detail

//! The part of a team_sampler that is computed on the host from options and vocabulary, and passed to kernels by value.
//!
//! Errors      option_error for a vocabulary outside 1 to 2^20, or, unless the temperature is 0, a top_k above 1024 and
//!             below the vocabulary
struct team_sampler_layout {
  detail::row_share share;
  std::size_t maxima = 0;  //!< offset in the memory where the maxima begin
  std::size_t bytes = 0;   //!< shared memory that each block of the team needs

  //! Returns the layout for these options and teams of `blocks` blocks. A kernel that needs shared memory beside the
  //! sampler's allows fewer maxima.
  static team_sampler_layout of(const sampling_options& options, std::int32_t vocab, unsigned blocks,
                                std::int32_t most_maxima = detail::row_share::most_maxima);
  //! Returns a layout that is large enough for any options that of() accepts.
  static team_sampler_layout of_any(std::int32_t vocab, unsigned blocks,
                                    std::int32_t most_maxima = detail::row_share::most_maxima);
};

namespace detail {

struct team_sampler_memory {
  static constexpr std::int32_t max_k = 1024;

  selection_memory selection;
  float numbers[max_k];  // exponentials of the tokens that top-k keeps, in order of tokens
  token_id tokens[max_k];
};

}  // namespace detail

inline team_sampler_layout team_sampler_layout::of(const sampling_options& options, std::int32_t vocab, unsigned blocks,
                                                   std::int32_t most_maxima) {
  require_option("vocabulary", vocab, 1, 1 << detail::token_bits);
  team_sampler_layout layout{detail::row_share::of(vocab, blocks, most_maxima), sizeof(detail::team_sampler_memory), 0};
  if (options.temperature == 0.0F) return layout;
  const bool has_top_k = options.top_k > 0 && options.top_k < vocab;
  if (has_top_k) require_option("top_k on the device", options.top_k, 1, detail::team_sampler_memory::max_k);
  if (has_top_k || options.top_p < 1.0F) layout.bytes = layout.maxima;
  if (has_top_k) layout.bytes += static_cast<std::size_t>(layout.share.own_maxima()) * sizeof(std::uint32_t);
  return layout;
}

inline team_sampler_layout team_sampler_layout::of_any(std::int32_t vocab, unsigned blocks, std::int32_t most_maxima) {
  return of({.temperature = 1.0F, .top_k = vocab > 1 ? 1 : 0, .top_p = 0.5F}, vocab, blocks, most_maxima);
}

//! Turns rows of logits into probabilities by a team of threads: espalier::sampler on the device, in kernels.
//!
//! LogitT is float, __half or __nv_bfloat16.
//!
//! Complexity  passes over the vocabulary, all but the first from the caches as far as these reach. find_transform: 1
//!             for temperature 0; 2 for a temperature alone or with min-p (maximum, exponentials); about seven more
//!             with top-p, for the cut; 1 with top-k, after which about k groups of 16 numbers are read again.
//!             probabilities: one more. Only the probabilities are written
//! Law         bit for bit the rows of espalier::sampler<float>, if neither compiler fuses products and sums
//! Pre         all threads of the team make the same calls; blocks of 256 threads or more
template <class LogitT>
class team_sampler {
 public:
  //! `memory` is layout.bytes of shared memory, at the same address in all blocks, aligned to 16 bytes.
  __device__ team_sampler(const sampling_options& options, const team_sampler_layout& layout, const team& who,
                          unsigned char* memory)
      : options_(options),
        layout_(layout),
        who_(who),
        memory_(reinterpret_cast<detail::team_sampler_memory*>(memory)) {}

  //! Returns the token with the largest logit, ties to the lower id; -1, with a fault in `found`, for a row that
  //! espalier::argmax refuses.
  __device__ token_id argmax(const LogitT* logits, std::int32_t vocab, fault* found, const row_origin& row) const {
    const detail::row_reader<LogitT> reader(logits, vocab);
    const std::uint64_t largest = largest_of(reader);
    if (is_accepted(largest)) return detail::token_of(largest);
    report_refused(refusal(largest, reader), logits, found, row);
    return -1;
  }

  //! Returns how the probabilities of a row follow from its logits, or why the row is refused.
  //!
  //! Shapes      logits [vocab]
  __device__ row_transform find_transform(const LogitT* logits, std::int32_t vocab) {
    const detail::row_reader<LogitT> reader(logits, vocab);
    const bool is_greedy = options_.temperature == 0.0F;
    const bool has_top_k = !is_greedy && options_.top_k > 0 && options_.top_k < vocab;
    const std::uint64_t largest = has_top_k ? scan(reader) : largest_of(reader);
    if (!is_accepted(largest)) return refusal(largest, reader);
    row_transform transform;
    transform.best = detail::number_of(largest);
    if (is_greedy) {
      transform.lowest = transform.best, transform.last_lowest = detail::token_of(largest);  // every exponential is 1
    } else {
      // The cap keeps 0 * scale at 0 where the quotient overflows.
      transform.scale = fminf(1.44269504F / options_.temperature, FLT_MAX);
      has_top_k ? take_top(reader, transform) : cut(reader, transform);
    }
    return transform;
  }

  //! Reports the fault of a row whose transform says that it is refused.
  __device__ void report_refused(const row_transform& transform, const LogitT* logits, fault* found,
                                 const row_origin& row) const {
    const auto token = static_cast<std::size_t>(transform.refused_token);
    if (who_.rank() == 0)
      report(found, {transform.refused, row, transform.refused_token, detail::number_in(logits, token)});
  }

  //! Writes the probabilities of a row, which all threads see afterwards. If espalier::sampler refuses the row,
  //! nothing is written, a fault is reported and false is returned.
  //!
  //! Shapes      logits, out: [vocab]
  __device__ bool probabilities(const LogitT* logits, std::int32_t vocab, float* out, fault* found,
                                const row_origin& row) {
    const row_transform transform = find_transform(logits, vocab);
    if (transform.refused != fault::kind::none) {
      report_refused(transform, logits, found, row);
      return false;
    }
    // Eight numbers are read before the first is written, so that no read waits for a write.
    constexpr std::int32_t at_once = 8;
    const auto size = static_cast<std::int32_t>(who_.size());
    for (auto first = static_cast<std::int32_t>(who_.rank()); first < vocab; first += at_once * size) {
      float p[at_once];
      ESPALIER_UNROLL
      for (std::int32_t j = 0; j < at_once; ++j) {
        const std::int32_t i = ::min(first + j * size, vocab - 1);
        p[j] = transform.probability(detail::number_in(logits, static_cast<std::size_t>(i)), i);
      }
      ESPALIER_UNROLL
      for (std::int32_t j = 0; j < at_once; ++j) {
        if (first + j * size < vocab) out[first + j * size] = p[j];
      }
    }
    who_.sync();
    return true;
  }

 private:
  // The key that stands for a row in which a logit is NaN or plus infinity: larger than all others.
  static constexpr std::uint64_t bad = ~std::uint64_t{0};

  __device__ static bool is_accepted(std::uint64_t largest) {
    return largest != bad && detail::number_of(largest) > -INFINITY;
  }

  // Returns the transform of a refused row. Reads the row again to find the first bad logit, which happens seldom.
  __device__ __noinline__ row_transform refusal(std::uint64_t largest, const detail::row_reader<LogitT>& reader) const {
    if (largest != bad) return row_transform::refusing(fault::kind::no_token, 0);
    auto first = static_cast<std::int32_t>(who_.rank());
    while (first < reader.size() && reader[first] < INFINITY)
      first += static_cast<std::int32_t>(who_.size());
    first = who_.reduce(first, [](std::int32_t a, std::int32_t b) { return ::min(a, b); });
    return row_transform::refusing(fault::kind::bad_logit, first);
  }

  // The largest number that a thread has seen, and whether all numbers so far were neither NaN nor plus infinity.
  struct seen {
    float best = -INFINITY;
    token_id token = 0;
    bool is_good = true;

    __device__ void see(const float (&x)[4], token_id first) {
      for (int a = 0; a < 4; ++a) {
        token = x[a] > best ? first + a : token;
        best = fmaxf(best, x[a]);
        is_good &= x[a] < INFINITY;
      }
    }
    __device__ std::uint64_t key() const { return is_good ? detail::key_of(best, token) : bad; }
  };

  __device__ std::uint64_t largest_in_team(const seen& mine) const {
    return who_.reduce(mine.key(), [](std::uint64_t a, std::uint64_t b) { return a < b ? b : a; });
  }

  // Returns the key of the largest number of the row, or `bad`. 16 threads read 256 numbers together; the next 256 are
  // loaded while these are looked at.
  __device__ std::uint64_t largest_of(const detail::row_reader<LogitT>& reader) const {
    constexpr std::int32_t numbers = 256;
    const auto step = static_cast<std::int32_t>(who_.size() / 16 * numbers);
    auto first = static_cast<std::int32_t>(who_.rank() / 16 * numbers + who_.rank() % 16 * 4);
    typename detail::row_reader<LogitT>::four words[4], next[4];
    if (first < reader.size()) reader.load(first, next);
    seen mine;
    for (; first < reader.size(); first += step) {
      for (std::int32_t j = 0; j < 4; ++j)
        words[j] = next[j];
      if (first + step < reader.size()) reader.load(first + step, next);
      for (std::int32_t j = 0; j < 4; ++j) {
        float x[4];
        reader.numbers(words[j], x);
        mine.see(x, first + j * 64);
      }
    }
    return largest_in_team(mine);
  }

  __device__ detail::row_selection<LogitT> selection(const detail::row_reader<LogitT>& reader) const {
    auto* maxima = reinterpret_cast<std::uint32_t*>(reinterpret_cast<unsigned char*>(memory_) + layout_.maxima);
    return {reader, who_, layout_.share, memory_->selection, maxima};
  }

  // Does what largest_of does, and also keeps the maxima for a selection.
  __device__ std::uint64_t scan(const detail::row_reader<LogitT>& reader) {
    const detail::row_share& share = layout_.share;
    selection(reader).open();
    __syncthreads();
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 16),
               half = static_cast<std::int32_t>(threadIdx.x % 32 / 16);
    const auto warps = static_cast<std::int32_t>(blockDim.x / 32);
    seen mine;
    for (auto pair = static_cast<std::int32_t>(threadIdx.x / 32); pair < share.own_pairs(who_.block()); pair += warps) {
      const std::int32_t own = 2 * pair + half;
      float best_of_quarter = -INFINITY;
      detail::read_block(
          reader, share.block_at(who_.block(), own), lane,
          [&](const float(&x)[4], std::int32_t token) {
            mine.see(x, token);
            best_of_quarter = fmaxf(best_of_quarter, fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
          },
          [&](std::int32_t quarter) {
            selection(reader).put(own, quarter, lane, best_of_quarter);
            best_of_quarter = -INFINITY;
          });
    }
    selection(reader).put_largest(mine.best);
    const std::uint64_t largest = largest_in_team(mine);
    who_.sync();
    return largest;
  }

  // The exponentials of a row, as a function of the token.
  struct exponentials {
    const LogitT* logits;
    row_transform transform;

    __device__ float operator()(std::size_t i) const { return transform.exponential(detail::number_in(logits, i)); }
  };

  // The exponentials that are at least `least`, with 0 in place of the others.
  struct exponentials_from {
    exponentials all;
    float least;

    __device__ float operator()(std::size_t i) const {
      const float e = all(i);
      return e < least ? 0.0F : e;
    }
  };

  // Applies top-p and min-p to the whole row.
  __device__ void cut(const detail::row_reader<LogitT>& reader, row_transform& transform) {
    const auto size = static_cast<std::size_t>(reader.size());
    const exponentials all{reader.data(), transform};
    double mass;
    if (options_.top_p < 1.0F) {
      const double total = who_.sum_of(size, all);
      detail::team_nucleus nucleus(all, reader.size(), who_, memory_->selection);
      const detail::team_cut found = nucleus.find(static_cast<double>(options_.top_p) * total, total);
      transform.least = found.least, transform.last_least = found.last, mass = found.mass;
      if (options_.min_p > transform.least) {
        transform.least = options_.min_p, transform.last_least = detail::every_tie;
        mass = who_.sum_of(size, exponentials_from{all, transform.least});
      }
    } else {
      transform.least = options_.min_p;
      mass = transform.least > 0 ? who_.sum_of(size, exponentials_from{all, transform.least}) : who_.sum_of(size, all);
    }
    transform.inverse = static_cast<float>(1.0 / mass);
  }

  // Applies top-k, and then top-p and min-p to the k largest numbers, or to all numbers above minus infinity if these
  // are fewer. Each block sorts these numbers for itself, and each of its warps finds the cut.
  __device__ void take_top(const detail::row_reader<LogitT>& reader, row_transform& transform) {
    detail::selection_memory& shared = memory_->selection;
    const std::int32_t n = selection(reader).find(options_.top_k, -FLT_MAX, transform.best, [] {});
    const std::int32_t k = ::min(n, options_.top_k);
    who_.sync();  // all blocks have read the keys that this block found
    detail::rank_found(shared, n, k, 0, 1, [&](std::int32_t rank, std::uint64_t key) { shared.own[rank] = key; });
    __syncthreads();
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < k; i += static_cast<std::int32_t>(blockDim.x)) {
      const token_id token = detail::token_of(shared.own[i]);
      std::int32_t place = 0;
      for (std::int32_t j = 0; j < k; ++j)
        place += detail::token_of(shared.own[j]) < token ? 1 : 0;
      const float e = transform.exponential(detail::number_of(shared.own[i]));
      memory_->numbers[place] = options_.top_p == 1.0F && e < options_.min_p ? 0.0F : e;
      memory_->tokens[place] = token;
    }
    transform.lowest = detail::number_of(shared.own[k - 1]),
    transform.last_lowest = detail::token_of(shared.own[k - 1]);
    __syncthreads();
    const float* numbers = memory_->numbers;
    const auto size = static_cast<std::size_t>(k);
    double mass = detail::one_warp()(0, size, [=](std::size_t i) { return numbers[i]; }).of[0];
    if (options_.top_p == 1.0F) transform.least = options_.min_p;
    if (options_.top_p < 1.0F) {
      const detail::team_cut found =
          detail::find_short_nucleus(numbers, k, static_cast<double>(options_.top_p) * mass, mass);
      transform.least = found.least, mass = found.mass;
      if (found.last != detail::every_tie) transform.last_least = memory_->tokens[found.last];
      if (options_.min_p > transform.least) {
        transform.least = options_.min_p, transform.last_least = detail::every_tie;
        const float min_p = options_.min_p;
        const auto from = [=](std::size_t i) { return numbers[i] < min_p ? 0.0F : numbers[i]; };
        mass = detail::one_warp()(0, size, from).of[0];
      }
    }
    transform.inverse = static_cast<float>(1.0 / mass);
  }

  sampling_options options_;
  team_sampler_layout layout_;
  const team& who_;
  detail::team_sampler_memory* memory_;
};

}  // namespace espalier::cuda
