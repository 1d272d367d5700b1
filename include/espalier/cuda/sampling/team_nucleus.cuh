// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/core/sums.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/sampling/row_selection.cuh"
#include "espalier/cuda/sampling/row_transform.cuh"

namespace espalier::cuda::detail {

// Where a row ends, largest weight first and ties by lower token: it keeps what is above `least`, and of the weights
// equal to it those up to `last`.
struct team_cut {
  float least;
  token_id last;
  double mass;  // of what is kept
};

// How many weights equal to `least` are kept, of `equal`, where those above it have the mass `above`: as
// espalier::detail::nucleus.
__device__ inline double ties_kept(double mass, double above, double least, double equal) {
  const double ties = ceil((mass - above) / least);
  return ties < equal ? ties : equal;
}

// The cut of at most 1024 weights, which lie in shared memory by token: bit for bit that of espalier::detail::nucleus.
// Each warp finds it by itself.
//
// Pre         0 < mass < total, the sum of the weights, which are at most 1
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

// The cut of a row, bit for bit that of espalier::detail::nucleus. The search is by value: two sums a
// pass tell in which part the last weight lies, until few weights are left, which are sorted; or one weight, of which
// there are many.
//
// Pre         as above; all threads of the team
template <class WeightsT>
class team_nucleus {
 public:
  __device__ team_nucleus(const WeightsT& weights, std::int32_t n, const team& who, selection_memory& memory)
      : weights_(weights), n_(n), who_(who), memory_(memory) {}

  __device__ team_cut find(double mass, double total) {
    mass_ = mass;
    from_low_ = total;
    // Where it lies in rows of language models.
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

  // No more than these can lie from low_ up to before high_: none of them is smaller.
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

  // What lies from low_ up to before high_, largest first, in memory.own of each block. Returns how many there are.
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
    who_.sync();  // the others have read
    rank_found(memory_, n, n, 0, 1, [this](std::int32_t rank, std::uint64_t key) { memory_.own[rank] = key; });
    __syncthreads();
    return n;
  }

  // The bits of the weight at which the mass is reached, by the sums of what was sorted.
  __device__ unsigned last_of_few(std::int32_t n) const {
    return who_.once([&] {
      double from = above_;
      std::int32_t i = 0;
      while (i < n && from < mass_)
        from += static_cast<double>(number_of(memory_.own[i++]));
      return i == 0 ? low_ : __float_as_uint(number_of(memory_.own[i - 1]));
    });
  }

  // As espalier::detail::nucleus: sums over the whole row decide.
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

  // The token of the last weight that is kept, of those that are equal to `least`.
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
  unsigned low_ = 1;             // the bits of a weight: the last that is kept is at least this
  unsigned high_ = 0x3F800001U;  // and less than this: one more than the bits of 1
  double above_ = 0;             // mass from high_ upwards, below mass_
  double from_low_ = 0;          // mass from low_ upwards, at least mass_
};

}  // namespace espalier::cuda::detail
