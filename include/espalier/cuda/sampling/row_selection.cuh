// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/sampling/row_reader.cuh"

namespace espalier::cuda::detail {

inline constexpr int token_bits = 20;  // a vocabulary has at most 2^20 tokens
inline constexpr std::uint64_t token_mask = (1U << token_bits) - 1;

// order_of returns an integer that compares as x does, negative numbers included; -0 counts as 0. number_at returns the
// number that belongs to such an integer.
__device__ inline std::uint32_t order_of(float x) {
  const unsigned bits = __float_as_uint(x + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float number_at(std::uint32_t order) {
  return __uint_as_float((order & 0x80000000U) != 0 ? order ^ 0x80000000U : ~order);
}

// The key of a token in a row: its number and its id in one integer, which no other token of the row has. The key is
// larger if the number is larger or, among equal numbers, if the token is lower. token_of, order_of_key and number_of
// take it apart.
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

// Bins for numbers by their size: 32 bins for each power of two from 2^-30 to 2^18, of either sign. A number outside
// this range falls into the bin nearest to it.
struct number_bins {
  static constexpr std::int32_t n = 2 * 48 * 32;

  __device__ static std::int32_t of(std::uint32_t order) {
    const bool is_positive = order >= zero;
    const std::uint32_t size = is_positive ? order - zero : zero - 1 - order;
    const auto step = static_cast<std::int32_t>((::min(::max(size, smallest), largest) - smallest) >> shift);
    return is_positive ? n / 2 + step : n / 2 - 1 - step;
  }
  // Returns order_of the smallest number of a bin. Pre: 0 <= bin < n
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

// The shared memory in which a selection works, at the same address in all blocks of a team.
struct selection_memory {
  static constexpr std::int32_t bins = 513;  // bins that one turn of narrow() counts in
  static constexpr std::int32_t rank_bins = 256;
  static constexpr std::int32_t room = 2048;

  std::uint64_t own[room];  // keys that this block has found
  union {
    // How many of this block's groups of 16 numbers have their largest number in each bin, until keys are gathered.
    std::uint32_t profile[number_bins::n];
    std::uint64_t all[room];  // keys that the team has found
  };
  union {
    std::uint32_t counts[2][bins];  // number of this block's keys in each bin; turns of narrow() alternate [0] and [1]
    struct {
      std::uint32_t begin[rank_bins], end[rank_bins];  // where each bin begins and ends in `place`; bins of larger
                                                       // keys come first
      std::uint16_t place[room];                       // the keys by bin, as indices into `all`
    } ranks;
  };
  warp_sums sums;
  std::uint32_t n_own;
  std::uint32_t least, most;         // order_of the smallest and the largest number that the team has found
  std::uint32_t largest;             // order_of the largest number that this block has read
  std::uint32_t bin, above, within;  // what search() has found

  // Empties the list of found keys. Called by one thread.
  __device__ void clear_found() {
    n_own = most = 0;
    least = UINT32_MAX;
  }
};

// Copies the keys that all blocks of the team have found into memory.all of every block, as far as there is room.
// Returns their number, which may exceed the room. Pre: a barrier of the team since they were found.
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

// Ranks the n keys of memory.all and calls emit(rank, key) for those among the k largest; the largest has rank 0. The
// work is cut into `parts` pieces; this call does piece `part`. Keys are put into bins by their numbers, and then
// compared with the other keys of their bin. Called by the whole block, once after each gather_found.
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

// The way in which a row is shared out to the thread blocks of a team. The row is cut into blocks of 1024 numbers, and
// each block into 64 groups of 16 numbers; the largest number of each group is kept, its maximum. One thread reads a
// group in four loads of four numbers each, 64 numbers apart.
//
// Parameter `own` of the functions below is an index: 0, 1, ... for the blocks of the row that one thread block reads.
struct row_share {
  static constexpr std::int32_t block_groups = 64;

  std::int32_t n_blocks;     // blocks of numbers in the row
  std::int32_t merged_bits;  // 2^merged_bits groups keep one maximum together: more than 0 if memory is short
  std::int32_t team_blocks;  // thread blocks of the team

  // Number of pairs of blocks of numbers that thread block `rank` of the team reads. Pairs are dealt out in turn.
  ESPALIER_HOST_DEVICE std::int32_t own_pairs(std::int32_t rank = 0) const {
    return ((n_blocks + 1) / 2 - rank + team_blocks - 1) / team_blocks;
  }
  ESPALIER_HOST_DEVICE std::int32_t own_blocks(std::int32_t rank = 0) const { return 2 * own_pairs(rank); }
  ESPALIER_HOST_DEVICE std::int32_t own_maxima(std::int32_t rank = 0) const {
    return (own_blocks(rank) * block_groups) >> merged_bits;
  }
  // block_at returns the block of the row that thread block `rank` reads as number `own`. rank_of and own_of are the
  // inverse: the rank of the thread block that reads a block of the row, and its `own` there.
  ESPALIER_HOST_DEVICE std::int32_t block_at(std::int32_t rank, std::int32_t own) const {
    return 2 * (own / 2 * team_blocks + rank) + own % 2;
  }
  ESPALIER_HOST_DEVICE std::int32_t rank_of(std::int32_t block) const { return block / 2 % team_blocks; }
  ESPALIER_HOST_DEVICE std::int32_t own_of(std::int32_t block) const {
    return 2 * (block / 2 / team_blocks) + block % 2;
  }

  // Number of maxima that fit, with what a selection needs beside them, into the 99 KiB of shared memory that every
  // device grants a block.
  static constexpr std::int32_t most_maxima = 10240;

  // The share for a row of `vocab` numbers that teams of `blocks` thread blocks read; each block keeps `most` maxima at
  // most.
  static row_share of(std::int32_t vocab, unsigned blocks, std::int32_t most = most_maxima) {
    constexpr auto block = static_cast<std::int32_t>(espalier::detail::mass_block);
    row_share share{(vocab + block - 1) / block, 0, static_cast<std::int32_t>(blocks)};
    while (share.own_maxima() > most)
      ++share.merged_bits;
    return share;
  }
};

// Finds the k largest numbers of a row, ties by lower token; the blocks of a team work on one row together. It takes
// four steps:
//   1. While the row is scanned, the largest number of each group of 16 is kept, and counted by its size (open, put).
//   2. The k-th largest of these maxima is a lower bound, since at least k numbers reach it; the bin in which it lies
//      gives the bound. If that bin holds too many maxima, they are counted by further bits to narrow the bound (find).
//   3. Groups whose maximum reaches the bound are read again, and their numbers that reach it are collected. If these
//      are too many (ties, or neighbours that are all large), all their keys are counted first to narrow the bound
//      (find).
//   4. The collected keys are ranked (rank).
//
// Pre         1 <= k <= 1024; the block has a multiple of 32 threads, 256 to 1024
template <class NumberT>
class row_selection {
 public:
  static constexpr std::int32_t max_k = 1024;

  __device__ row_selection(const row_reader<NumberT>& row, const team& who, const row_share& share,
                           selection_memory& memory, std::uint32_t* maxima)
      : row_(row), who_(who), share_(share), memory_(memory), maxima_(maxima) {}

  // Clears the memory. Called before the row is scanned; a barrier of the block must follow.
  __device__ void open() {
    for (std::int32_t i = thread(); i < selection_memory::bins; i += threads())
      memory_.counts[0][i] = 0;
    for (std::int32_t i = thread(); i < number_bins::n; i += threads())
      memory_.profile[i] = 0;
    if (share_.merged_bits > 0) {
      for (std::int32_t i = thread(); i < share_.own_maxima(who_.block()); i += threads())
        maxima_[i] = 0;
    }
    if (threadIdx.x != 0) return;
    memory_.clear_found();
    memory_.largest = 0;
  }

  // Takes the largest number of group quarter * 16 + lane of block `own`. Called for each group while the row is
  // scanned. 0 <= quarter < 4, 0 <= lane < 16.
  __device__ void put(std::int32_t own, std::int32_t quarter, std::int32_t lane, float largest) {
    const std::int32_t at = own * row_share::block_groups + quarter * 16 + lane;
    const std::uint32_t order = order_of(largest);
    if (share_.merged_bits == 0) {
      maxima_[at] = order;
    } else {
      atomicMax(&maxima_[at >> share_.merged_bits], order);
    }
    atomicAdd(&memory_.profile[number_bins::of(order)], 1U);
  }
  // Takes the largest number that this thread has read. Called by all lanes of a warp together.
  __device__ void put_largest(float largest) {
    const std::uint32_t order = __reduce_max_sync(all_lanes, order_of(largest));
    if (threadIdx.x % 32 == 0) atomicMax(&memory_.largest, order);
  }
  // The largest number of the row. Pre: a barrier of the team since the scan.
  __device__ float largest() const {
    return number_at(__reduce_max_sync(all_lanes, who_.of_block_by_lane(&memory_.largest, 0U)));
  }

  // Puts at least the k largest among the numbers that are `least` or more into memory.all of every block, in no order;
  // all such numbers if they are fewer than k. Returns how many are there, at most `room`. `best` is the largest number
  // of the row. Calls beside() while the team waits. A block that has returned from here reads no other block's memory
  // any more; other blocks may still read its own. Pre: a barrier of the team since the scan.
  template <class BesideF>
  __device__ std::int32_t find(std::int32_t k, float least, float best, const BesideF& beside) {
    const std::uint64_t low = static_cast<std::uint64_t>(order_of(least)) << token_bits;
    const std::uint64_t high = static_cast<std::uint64_t>(order_of(best)) << token_bits | token_mask;
    const auto need = static_cast<std::uint32_t>(k);
    std::uint64_t from = bound(low, high, need);
    collect(from);
    const auto arrival = who_.arrive();
    beside();
    who_.wait(arrival);
    std::int32_t n = gather_found(who_, memory_);
    if (n > selection_memory::room) {
      const auto each_number = [this, from](const auto& count) { for_each_from(from, count); };
      from = narrow(each_number, from, high, need, selection_memory::room, 0);
      if (threadIdx.x == 0) memory_.clear_found();
      __syncthreads();
      collect(from);
      who_.sync();
      n = gather_found(who_, memory_);
    }
    return n;
  }

  // Calls emit(rank, key) for each of the k largest of the n keys that find() has found: each key once, in one block of
  // the team. May be called once after find().
  template <class EmitT>
  __device__ void rank(std::int32_t n, std::int32_t k, const EmitT& emit) const {
    rank_found(memory_, n, k, who_.block(), who_.blocks(), emit);
  }

 private:
  __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }
  __device__ static std::int32_t threads() { return static_cast<std::int32_t>(blockDim.x); }

  // Returns a bound in [low, high] that at least `need` maxima reach, but not many more; `low` if fewer than `need`
  // maxima reach it. All threads of the team get the same bound. Pre: no maximum is above high.
  __device__ std::uint64_t bound(std::uint64_t low, std::uint64_t high, std::uint32_t need) {
    const std::uint32_t enough = ::min(::max(2 * need, 512U), 1536U);
    std::uint32_t above = 0;
    for (std::int32_t top = number_bins::of(order_of_key(high)); top >= 0; top -= threads()) {
      const std::int32_t n = ::min(top + 1, threads());
      const found_bin found = search(memory_.profile, top, n, need - above);
      above += found.above;
      if (!found.is_there) continue;
      const std::uint64_t edge = ::max(low, static_cast<std::uint64_t>(number_bins::begin(found.bin)) << token_bits);
      if (above + found.within <= enough) return edge;
      if (found.bin + 1 < number_bins::n) {
        const auto next = static_cast<std::uint64_t>(number_bins::begin(found.bin + 1)) << token_bits;
        high = ::min(high, next - 1);
      }
      const auto each_maximum = [this](const auto& count) {
        for (std::int32_t i = thread(); i < share_.own_maxima(who_.block()); i += threads())
          count(static_cast<std::uint64_t>(maxima_[i]) << token_bits);
      };
      return narrow(each_maximum, edge, high, need - above, enough - above, token_bits);
    }
    return low;
  }

  // Returns a bound in [low, high] that at least `need` keys reach; `low` if fewer than `need` keys lie there. At most
  // `enough` keys reach the bound, unless that needs steps smaller than 2^finest. All threads of the team get the same
  // bound. for_each_own(count) calls count(key) for each key of this block.
  //
  // Each turn counts the keys of an interval in bins, and goes on inside the bin in which the need-th largest key lies.
  template <class EachT>
  __device__ std::uint64_t narrow(const EachT& for_each_own, std::uint64_t low, std::uint64_t high, std::uint32_t need,
                                  std::uint32_t enough, int finest) {
    for (;;) {
      const int width = 64 - __clzll(static_cast<long long>(high - low));
      const int shift = ::max(width - 9, finest);
      std::uint32_t* counts = memory_.counts[turn_ & 1U];
      for_each_own([&](std::uint64_t key) {
        if (key >= low && key <= high) atomicAdd(&counts[(key - low) >> shift], 1U);
      });
      who_.sync();
      // All blocks have read the counts of the previous turn before this barrier, so they may be cleared for the next
      // one.
      for (std::int32_t i = thread(); i < selection_memory::bins; i += threads())
        memory_.counts[(turn_ + 1) & 1U][i] = 0;
      ++turn_;
      const found_bin found = search(counts, selection_memory::bins - 1, selection_memory::bins, need);
      if (!found.is_there) return low;
      const std::uint64_t edge = low + (static_cast<std::uint64_t>(found.bin) << shift);
      if (found.above + found.within <= enough || shift == finest) return edge;
      high = ::min(high, edge + (std::uint64_t{1} << shift) - 1);
      low = edge;
      need -= found.above;
      enough -= found.above;
    }
  }

  struct found_bin {
    bool is_there;
    std::int32_t bin;
    std::uint32_t above, within;  // number of keys in larger bins, and in this bin; if no bin is found, `above` counts
                                  // the keys of all bins
  };

  // Finds, among the n bins from `top` downwards, the bin in which the need-th largest key of the whole team lies.
  // Called by all threads of the team.
  __device__ found_bin search(const std::uint32_t* counts, std::int32_t top, std::int32_t n, std::uint32_t need) {
    constexpr std::int32_t most = (selection_memory::bins + 255) / 256;
    const std::int32_t each = (n + threads() - 1) / threads(), begin = thread() * each;
    std::uint32_t count[most] = {};
    std::uint32_t sum = 0;
    for (std::int32_t i = 0; i < most; ++i) {
      if (i < each && begin + i < n) count[i] = of_team(counts + (top - begin - i));
      sum += count[i];
    }
    const running_sum sums = sum_before(static_cast<std::int32_t>(sum), memory_.sums);
    auto above = static_cast<std::uint32_t>(sums.before);
    for (std::int32_t i = 0; i < most; ++i) {
      if (above < need && need <= above + count[i]) {
        memory_.bin = static_cast<std::uint32_t>(top - begin - i);
        memory_.above = above;
        memory_.within = count[i];
      }
      above += count[i];
    }
    __syncthreads();
    if (static_cast<std::uint32_t>(sums.all) < need) return {false, 0, static_cast<std::uint32_t>(sums.all), 0};
    return {true, static_cast<std::int32_t>(memory_.bin), memory_.above, memory_.within};
  }

  // Returns the sum, over the blocks of the team, of the counters at this address.
  __device__ std::uint32_t of_team(const std::uint32_t* mine) const {
    constexpr std::int32_t at_once = 8;
    std::uint32_t sum = 0;
    for (std::int32_t first = 0; first < who_.blocks(); first += at_once) {
      std::uint32_t of_block[at_once];
      for (std::int32_t r = 0; r < at_once; ++r)
        of_block[r] = first + r < who_.blocks() ? *who_.in_block(first + r, mine) : 0;
      for (const std::uint32_t x : of_block)
        sum += x;
    }
    return sum;
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

  // Collects the keys of this block that reach `from` into memory.own, as far as there is room.
  __device__ void collect(std::uint64_t from) {
    for_each_from(from, [this](std::uint64_t key) {
      const std::uint32_t at = atomicAdd(&memory_.n_own, 1U);
      if (at < selection_memory::room) memory_.own[at] = key;
    });
  }

  row_reader<NumberT> row_;
  team who_;
  row_share share_;
  selection_memory& memory_;
  std::uint32_t* maxima_;
  std::uint32_t turn_ = 0;
};

}  // namespace espalier::cuda::detail
