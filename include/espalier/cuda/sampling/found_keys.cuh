// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/team.cuh"

namespace espalier::cuda::detail {

inline constexpr int token_bits = 20;  // a vocabulary has at most 2^20 tokens
inline constexpr std::uint64_t token_mask = (1U << token_bits) - 1;

// A number as an integer of the same order, negative numbers included; -0 counts as 0. And back.
__device__ inline std::uint32_t order_of(float x) {
  const unsigned bits = __float_as_uint(x + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float number_at(std::uint32_t order) {
  return __uint_as_float((order & 0x80000000U) != 0 ? order ^ 0x80000000U : ~order);
}

// A number and its token as one integer, which no other token of the row has. The larger key is the larger number; of
// equal numbers, the lower token.
__device__ inline std::uint64_t key_of(float x, std::int32_t token) {
  return static_cast<std::uint64_t>(order_of(x)) << token_bits | (token_mask - static_cast<std::uint64_t>(token));
}
__device__ inline token_id token_of(std::uint64_t key) {
  return static_cast<token_id>(token_mask - (key & token_mask));
}
__device__ inline std::uint32_t order_of_key(std::uint64_t key) {
  return static_cast<std::uint32_t>(key >> token_bits);
}
__device__ inline float number_of(std::uint64_t key) {
  return number_at(order_of_key(key));
}

// Numbers by size, roughly: 32 bins for each power of two from 2^-30 to 2^18, of either sign. What is smaller or larger
// is in the nearest of these.
struct number_bins {
  static constexpr std::int32_t n = 2 * 48 * 32;

  __device__ static std::int32_t of(std::uint32_t order) {
    const bool is_positive = order >= zero;
    const std::uint32_t size = is_positive ? order - zero : zero - 1 - order;
    const auto step = static_cast<std::int32_t>((::min(::max(size, smallest), largest) - smallest) >> shift);
    return is_positive ? n / 2 + step : n / 2 - 1 - step;
  }
  // The order of the least number of a bin. Pre: 0 <= bin < n
  __device__ static std::uint32_t begin(std::int32_t bin) {
    if (bin == 0) return 0;
    if (bin == n / 2) return zero;
    return bin > n / 2 ? zero + smallest + (static_cast<std::uint32_t>(bin - n / 2) << shift)
                       : zero - smallest - (static_cast<std::uint32_t>(n / 2 - bin) << shift);
  }

 private:
  static constexpr std::uint32_t zero = 0x80000000U;  // the order of 0
  static constexpr std::uint32_t smallest = (127U - 30) << 23, largest = ((127U + 18) << 23) - 1;
  static constexpr int shift = 18;
};

// What a selection works in: shared memory, at the same place in all blocks of a team.
struct selection_memory {
  static constexpr std::int32_t bins = 513;  // of a turn
  static constexpr std::int32_t rank_bins = 256;
  static constexpr std::int32_t room = 2048;

  std::uint64_t own[room];  // keys that this block has found
  union {
    std::uint32_t profile[number_bins::n];  // how many maxima of this block are in each bin; until keys are gathered
    std::uint64_t all[room];                // keys that the team has found
  };
  union {
    std::uint32_t counts[2][bins];  // of this block's keys, in turns
    struct {
      std::uint32_t begin[rank_bins], end[rank_bins];  // in `place`, the largest keys first
      std::uint16_t place[room];                       // in `all`
    } ranks;
  };
  warp_sums sums;
  std::uint32_t n_own;
  std::uint32_t least, most;  // order_of the numbers that the team has found
  std::uint32_t largest;      // order_of the largest number that this block has read
  std::uint32_t bin, above, within;

  // Nothing has been found. By one thread.
  __device__ void clear_found() {
    n_own = most = 0;
    least = UINT32_MAX;
  }
};

// Copies the keys that all blocks of the team have found to memory.all of each of them, as far as there is room.
// Returns how many they are. Pre: a barrier of the team since they were found.
__device__ inline std::int32_t gather_found(const team& who, selection_memory& memory) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int32_t end = sum_to_lane(static_cast<std::int32_t>(who.of_block_by_lane(&memory.n_own, 0U)));
  const std::int32_t n = __shfl_sync(all_lanes, end, who.blocks() - 1), n_here = ::min(n, selection_memory::room);
  for (auto b = static_cast<std::int32_t>(threadIdx.x); b < selection_memory::rank_bins;
       b += static_cast<std::int32_t>(blockDim.x))
    memory.ranks.begin[b] = 0;
  std::uint32_t least = UINT32_MAX, most = 0;
  for (auto first = static_cast<std::int32_t>(threadIdx.x) - lane; first < n_here;
       first += static_cast<std::int32_t>(blockDim.x)) {
    const std::int32_t i = first + lane;
    std::int32_t block = 0, begin = 0;
    for (std::int32_t r = 0; r + 1 < who.blocks(); ++r) {
      const std::int32_t end_of_block = __shfl_sync(all_lanes, end, r);
      if (i >= end_of_block) block = r + 1, begin = end_of_block;
    }
    if (i >= n_here) continue;
    const std::uint64_t key = who.in_block(block, memory.own)[i - begin];
    memory.all[i] = key;
    least = ::min(least, order_of_key(key));
    most = ::max(most, order_of_key(key));
  }
  least = __reduce_min_sync(all_lanes, least);
  most = __reduce_max_sync(all_lanes, most);
  if (lane == 0) atomicMin(&memory.least, least), atomicMax(&memory.most, most);
  __syncthreads();
  return n;
}

// Ranks the n keys of memory.all, and calls emit(rank, key) for those among the k largest: for part `part` of `parts`
// of the keys. They are put into bins by their numbers; those of a bin are compared with each other. Called by the
// whole block, once after each gather_found.
template <class EmitT>
__device__ void rank_found(selection_memory& memory, std::int32_t n, std::int32_t k, std::int32_t part,
                           std::int32_t parts, const EmitT& emit) {
  constexpr std::int32_t bins = selection_memory::rank_bins;
  const auto thread = static_cast<std::int32_t>(threadIdx.x), threads = static_cast<std::int32_t>(blockDim.x);
  auto& ranks = memory.ranks;
  const std::uint32_t least = memory.least;
  const int shift = ::max(24 - __clz(static_cast<int>(memory.most - least)), 0);
  const auto bin_of = [=](std::uint64_t key) {
    return bins - 1 - static_cast<std::int32_t>((order_of_key(key) - least) >> shift);
  };
  for (std::int32_t i = thread; i < n; i += threads)
    atomicAdd(&ranks.begin[bin_of(memory.all[i])], 1U);
  __syncthreads();
  const auto count = static_cast<std::int32_t>(thread < bins ? ranks.begin[thread] : 0);
  const auto before = static_cast<std::uint32_t>(sum_before(count, memory.sums).before);
  if (thread < bins) ranks.begin[thread] = ranks.end[thread] = before;
  __syncthreads();
  for (std::int32_t i = thread; i < n; i += threads)
    ranks.place[atomicAdd(&ranks.end[bin_of(memory.all[i])], 1U)] = static_cast<std::uint16_t>(i);
  __syncthreads();
  const std::int32_t size = (n + parts - 1) / parts, last = ::min(n, (part + 1) * size);
  for (std::int32_t i = part * size + thread; i < last; i += threads) {
    const std::uint64_t key = memory.all[i];
    const std::int32_t bin = bin_of(key);
    std::uint32_t rank = ranks.begin[bin];
    for (std::uint32_t j = rank, end = ranks.end[bin]; j < end; ++j)
      rank += memory.all[ranks.place[j]] > key ? 1U : 0U;
    if (static_cast<std::int32_t>(rank) < k) emit(static_cast<std::int32_t>(rank), key);
  }
}

}  // namespace espalier::cuda::detail
