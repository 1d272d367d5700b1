// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/sampling/row_reader.cuh"

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
__device__ inline float number_of(std::uint64_t key) {
  return number_at(static_cast<std::uint32_t>(key >> token_bits));
}

// How a row is shared out to the blocks of threads of a team. The row is cut into blocks of 1024 numbers, and each of
// these into 64 groups of 16, of which the largest number is kept. A group is what one thread reads in four loads: four
// times four numbers, 64 apart.
//
// Below, `own` counts the blocks of numbers that one block of threads reads.
struct row_share {
  static constexpr std::int32_t block_groups = 64;

  std::int32_t n_blocks;     // of numbers, in the row
  std::int32_t merged_bits;  // 2^merged_bits groups keep one maximum together: more than 0 where memory is short
  std::int32_t team_blocks;  // blocks of threads of the team

  // How many pairs of blocks of numbers block `rank` of the team reads: they are dealt out in turn.
  ESPALIER_HOST_DEVICE std::int32_t own_pairs(std::int32_t rank = 0) const {
    return ((n_blocks + 1) / 2 - rank + team_blocks - 1) / team_blocks;
  }
  ESPALIER_HOST_DEVICE std::int32_t own_blocks(std::int32_t rank = 0) const { return 2 * own_pairs(rank); }
  ESPALIER_HOST_DEVICE std::int32_t own_maxima(std::int32_t rank = 0) const {
    return (own_blocks(rank) * block_groups) >> merged_bits;
  }
  // Which block of the row is the own-th of a block of threads. And back: the rank of the block of threads that reads
  // it, and own.
  ESPALIER_HOST_DEVICE std::int32_t block_at(std::int32_t rank, std::int32_t own) const {
    return 2 * (own / 2 * team_blocks + rank) + own % 2;
  }
  ESPALIER_HOST_DEVICE std::int32_t rank_of(std::int32_t block) const { return block / 2 % team_blocks; }
  ESPALIER_HOST_DEVICE std::int32_t own_of(std::int32_t block) const {
    return 2 * (block / 2 / team_blocks) + block % 2;
  }

  // For a row of `vocab` numbers that teams of `blocks` read.
  static row_share of(std::int32_t vocab, unsigned blocks) {
    constexpr std::int32_t most = 11264;  // fit, with the rest, into the 99 KiB that every device grants a block
    constexpr auto block = static_cast<std::int32_t>(espalier::detail::mass_block);
    row_share share{(vocab + block - 1) / block, 0, static_cast<std::int32_t>(blocks)};
    while (share.own_maxima() > most)
      ++share.merged_bits;
    return share;
  }
};

struct selection_memory {
  static constexpr int bins = 513;
  static constexpr int room = 2048;

  std::uint64_t own[room];  // keys that this block has found
  std::uint64_t all[room];  // keys that the team has found
  std::uint32_t counts[2][bins];
  std::uint32_t warp_sums[32];
  std::uint32_t n_own;
  std::uint32_t largest;  // order_of the largest number that this block has read
  std::uint32_t bin[2], above, within;
};

// Copies the keys that all blocks of the team have found to memory.all of each of them. Returns how many they are. Pre:
// a barrier of the team since they were found; there is room for them.
__device__ inline std::int32_t gather_found(const team& who, selection_memory& memory) {
  std::int32_t first = 0;
  for (std::int32_t r = 0; r < who.blocks(); ++r) {
    const auto counted = static_cast<std::int32_t>(*who.in_block(r, &memory.n_own));
    const std::int32_t n = ::min(counted, selection_memory::room - first);
    const std::uint64_t* from = who.in_block(r, memory.own);
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n; i += static_cast<std::int32_t>(blockDim.x))
      memory.all[first + i] = from[i];
    first += n;
  }
  __syncthreads();
  return first;
}

// Ranks the keys begin .. end - 1 of memory.all, which holds n: compares each with all of them. Calls emit(rank, key)
// for those that are among the k largest. Called by the whole block.
template <class EmitT>
__device__ void rank_found(const selection_memory& memory, std::int32_t begin, std::int32_t end, std::int32_t n,
                           std::int32_t k, const EmitT& emit) {
  constexpr std::int32_t at_once = 4;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const auto warp = static_cast<std::int32_t>(threadIdx.x / 32), n_warps = static_cast<std::int32_t>(blockDim.x / 32);
  for (std::int32_t i = begin + warp * at_once; i < end; i += n_warps * at_once) {
    std::uint64_t key[at_once];
    std::uint32_t larger[at_once] = {};
    for (std::int32_t q = 0; q < at_once; ++q)
      key[q] = memory.all[::min(i + q, end - 1)];
    for (std::int32_t j = lane; j < n; j += 32) {
      const std::uint64_t other = memory.all[j];
      for (std::int32_t q = 0; q < at_once; ++q)
        larger[q] += other > key[q] ? 1U : 0U;
    }
    for (std::int32_t q = 0; q < at_once; ++q) {
      const auto rank = static_cast<std::int32_t>(__reduce_add_sync(all_lanes, larger[q]));
      if (lane == q && i + q < end && rank < k) emit(rank, key[q]);
    }
  }
}

// Finds the k largest numbers of a row, ties by lower token; the blocks of a team work on one row together. It goes in
// four steps:
//   1. While the row is scanned, the largest number of each group of 16 is kept (open, put).
//   2. At least k numbers reach the k-th largest of these maxima. A bound at it, or little below it, is found by
//      counting maxima by their leading bits (find).
//   3. Groups whose maximum reaches the bound are read again, and their numbers that reach it are collected. Where
//      these are too many (ties, or neighbours that are all large), counting all their keys narrows the bound first
//      (find).
//   4. What is collected is ranked by comparing each key with all others (rank).
//
// Pre         1 <= k <= 1024; the block has a multiple of 32 threads, 256 to 1024
template <class NumberT>
class row_selection {
 public:
  static constexpr std::int32_t max_k = 1024;

  __device__ row_selection(const row_reader<NumberT>& row, const team& who, const row_share& share,
                           selection_memory& memory, std::uint32_t* maxima)
      : row_(row), who_(who), share_(share), memory_(memory), maxima_(maxima) {}

  // Called before the row is scanned. A barrier of the team must follow.
  __device__ void open() {
    for (unsigned i = threadIdx.x; i < selection_memory::bins; i += blockDim.x)
      memory_.counts[0][i] = 0;
    if (share_.merged_bits > 0) {
      for (std::int32_t i = thread(); i < share_.own_maxima(who_.block()); i += threads())
        maxima_[i] = 0;
    }
    if (threadIdx.x == 0) memory_.n_own = memory_.largest = 0;
  }

  // Called while the row is scanned: the largest number of one group of the own-th block. quarter is 0 to 3, lane 0 to
  // 15.
  __device__ void put(std::int32_t own, std::int32_t quarter, std::int32_t lane, float largest) {
    const std::int32_t at = own * row_share::block_groups + quarter * 16 + lane;
    if (share_.merged_bits == 0) {
      maxima_[at] = order_of(largest);
    } else {
      atomicMax(&maxima_[at >> share_.merged_bits], order_of(largest));
    }
  }
  // The largest number that this thread has read. Called by all lanes of a warp together.
  __device__ void put_largest(float largest) {
    const std::uint32_t order = __reduce_max_sync(all_lanes, order_of(largest));
    if (threadIdx.x % 32 == 0) atomicMax(&memory_.largest, order);
  }
  // The largest number of the row. Pre: a barrier of the team since the scan.
  __device__ float largest() const {
    std::uint32_t order = 0;
    for (std::int32_t r = 0; r < who_.blocks(); ++r)
      order = ::max(order, *who_.in_block(r, &memory_.largest));
    return number_at(order);
  }

  // Puts at least the k largest of the numbers that are `least` or more into memory.all of every block, in no order;
  // all of them if they are fewer. Returns how many they are, at most `room`. `likely` is a guess of the bound, which
  // saves work where it is good. Pre: a barrier of the team since the scan.
  __device__ std::int32_t find(std::int32_t k, float least, float likely) {
    const std::uint64_t low = static_cast<std::uint64_t>(order_of(least)) << token_bits;
    const std::uint64_t high = static_cast<std::uint64_t>(order_of(largest())) << token_bits | token_mask;
    const std::uint64_t middle = static_cast<std::uint64_t>(order_of(likely)) << token_bits;
    const auto need = static_cast<std::uint32_t>(k);
    const auto each_maximum = [this](const auto& count) {
      for (std::int32_t i = thread(); i < share_.own_maxima(who_.block()); i += threads())
        count(static_cast<std::uint64_t>(maxima_[i]) << token_bits);
    };
    std::uint64_t from = narrow(each_maximum, low, middle > low && middle <= high ? middle : low, high, need,
                                need + need / 4 + 16, token_bits);
    std::int32_t n = collect(from);
    if (n > selection_memory::room) {
      const auto each_number = [this, from](const auto& count) { for_each_from(from, count); };
      from = narrow(each_number, from, from, high, need, selection_memory::room, 0);
      if (threadIdx.x == 0) memory_.n_own = 0;
      __syncthreads();
      n = collect(from);
    }
    return gather_found(who_, memory_);
  }

  // Of the n keys that find() has found, calls emit(rank, key) once for each of the k largest, in some block of the
  // team.
  template <class EmitT>
  __device__ void rank(std::int32_t n, std::int32_t k, const EmitT& emit) const {
    const std::int32_t part = (n + who_.blocks() - 1) / who_.blocks();
    rank_found(memory_, who_.block() * part, ::min(n, (who_.block() + 1) * part), n, k, emit);
  }

 private:
  __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }
  __device__ static std::int32_t threads() { return static_cast<std::int32_t>(blockDim.x); }

  // A bound in [low, high] that at least `need` of the keys there reach; `low` where there are fewer than `need`. Not
  // more than `enough` keys reach it, unless only a bound finer than multiples of 2^finest would do. The bound is
  // expected to be `middle` or more. All threads of the team get the same one.
  //
  // Each turn counts the keys of an interval in bins, takes the bin in which the need-th largest lies, and goes on
  // inside it.
  template <class EachT>
  __device__ std::uint64_t narrow(const EachT& for_each_own, std::uint64_t low, std::uint64_t middle,
                                  std::uint64_t high, std::uint32_t need, std::uint32_t enough, int finest) {
    for (;;) {
      // Bin 0 has the keys below the middle; the others share out [middle, high].
      const int width = 64 - __clzll(static_cast<long long>(high - middle));
      const int shift = ::max(width - 9, finest);
      std::uint32_t* counts = memory_.counts[pass_ & 1U];
      for_each_own([&](std::uint64_t key) {
        if (key < low || key > high) return;
        atomicAdd(&counts[key < middle ? 0 : 1 + ((key - middle) >> shift)], 1U);
      });
      if (threadIdx.x == 0) memory_.bin[pass_ & 1U] = selection_memory::bins;
      who_.sync();
      // All blocks have read the counts of the turn before this barrier: they may be cleared for the next one.
      for (std::int32_t i = thread(); i < selection_memory::bins; i += threads())
        memory_.counts[(pass_ + 1) & 1U][i] = 0;
      search(counts, need);
      const std::uint32_t bin = memory_.bin[pass_++ & 1U], above = memory_.above, reached = above + memory_.within;
      if (bin == selection_memory::bins) return low;
      const std::uint64_t edge = bin == 0 ? low : middle + (static_cast<std::uint64_t>(bin - 1) << shift);
      if (reached <= enough || (bin > 0 && shift == finest)) return edge;
      high = bin == 0 ? middle - 1 : ::min(high, edge + (std::uint64_t{1} << shift) - 1);
      low = middle = edge;
      need -= above;
      enough -= above;
    }
  }

  // Finds the bin in which the need-th largest key lies, over the whole team, the keys above that bin, and those in it.
  __device__ void search(std::uint32_t* counts, std::uint32_t need) {
    constexpr std::int32_t most = (selection_memory::bins + 255) / 256;
    const std::int32_t each = (selection_memory::bins + threads() - 1) / threads();
    const std::int32_t last = selection_memory::bins - 1 - thread() * each;
    std::uint32_t count[most] = {};
    std::uint32_t sum = 0;
    for (std::int32_t i = 0; i < each && last - i >= 0; ++i) {
      for (std::int32_t r = 0; r < who_.blocks(); ++r)
        count[i] += who_.in_block(r, counts)[last - i];
      sum += count[i];
    }
    std::uint32_t to_here = sum;
    for (unsigned d = 1; d < 32; d *= 2) {
      const std::uint32_t before = __shfl_up_sync(all_lanes, to_here, d);
      if (threadIdx.x % 32 >= d) to_here += before;
    }
    if (threadIdx.x % 32 == 31) memory_.warp_sums[threadIdx.x / 32] = to_here;
    __syncthreads();
    for (unsigned w = 0; w < threadIdx.x / 32; ++w)
      to_here += memory_.warp_sums[w];
    std::uint32_t above = to_here - sum;
    if (above < need && need <= to_here) {
      std::int32_t i = 0;
      while (above + count[i] < need)
        above += count[i++];
      memory_.bin[pass_ & 1U] = static_cast<std::uint32_t>(last - i);
      memory_.above = above;
      memory_.within = count[i];
    }
    __syncthreads();
  }

  // Calls f(key) for this block's numbers whose keys reach `from`. Groups whose maximum does not reach it are not read.
  template <class FunctionT>
  __device__ void for_each_from(std::uint64_t from, const FunctionT& f) const {
    for (std::int32_t i = thread(); i < share_.own_maxima(who_.block()); i += threads()) {
      if ((static_cast<std::uint64_t>(maxima_[i]) << token_bits | token_mask) < from) continue;
      for (std::int32_t at = i << share_.merged_bits; at < (i + 1) << share_.merged_bits; ++at) {
        const std::int32_t block = share_.block_at(who_.block(), at / row_share::block_groups);
        const std::int32_t in_block = at % row_share::block_groups;
        const std::int32_t first =
            block * static_cast<std::int32_t>(espalier::detail::mass_block) + in_block / 16 * 256 + in_block % 16 * 4;
        typename row_reader<NumberT>::four words[4];
        row_.load(first, words);
        for (std::int32_t j = 0; j < 4; ++j) {
          float x[4];
          row_.numbers(words[j], x);
          for (std::int32_t a = 0; a < 4; ++a) {
            const std::int32_t token = first + j * 64 + a;
            if (token >= row_.size()) continue;
            const std::uint64_t key = key_of(x[a], token);
            if (key >= from) f(key);
          }
        }
      }
    }
  }

  // Collects the keys that reach `from`: each block its own, into memory.own, as far as there is room. Returns how many
  // they are in the whole team.
  __device__ std::int32_t collect(std::uint64_t from) {
    for_each_from(from, [this](std::uint64_t key) {
      const std::uint32_t at = atomicAdd(&memory_.n_own, 1U);
      if (at < selection_memory::room) memory_.own[at] = key;
    });
    who_.sync();
    std::uint32_t n = 0;
    for (std::int32_t r = 0; r < who_.blocks(); ++r)
      n += *who_.in_block(r, &memory_.n_own);
    return static_cast<std::int32_t>(n);
  }

  row_reader<NumberT> row_;
  team who_;
  row_share share_;
  selection_memory& memory_;
  std::uint32_t* maxima_;
  std::uint32_t pass_ = 0;
};

}  // namespace espalier::cuda::detail
