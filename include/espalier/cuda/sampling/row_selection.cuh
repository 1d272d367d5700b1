// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cmath>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/sampling/row_reader.cuh"
#include "espalier/cuda/sampling/row_team.cuh"

namespace espalier::cuda::detail {

inline constexpr int token_bits = 20;  // a vocabulary has at most 2^20 tokens
inline constexpr std::uint64_t token_mask = (1U << token_bits) - 1;

// Numbers in the order of their bits, negative ones included; -0 is 0.
__device__ inline std::uint32_t order_of(float x) {
  const unsigned bits = __float_as_uint(x + 0.0F);
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ inline float number_at(std::uint32_t order) {
  return __uint_as_float((order & 0x80000000U) != 0 ? order ^ 0x80000000U : ~order);
}

// A number and its token as one integer, unique in a row: the more probable and, among equals, the lower token is larger.
__device__ inline std::uint64_t key_of(float x, std::int32_t token) {
  return static_cast<std::uint64_t>(order_of(x)) << token_bits | (token_mask - static_cast<std::uint64_t>(token));
}
__device__ inline token_id token_of(std::uint64_t key) {
  return static_cast<token_id>(token_mask - (key & token_mask));
}
__device__ inline float number_of(std::uint64_t key) {
  return number_at(static_cast<std::uint32_t>(key >> token_bits));
}

// Which blocks of 1024 numbers a block of threads reads, and where it keeps the largest of each group of 16: those four that
// one thread reads at once, and the next three fours of its.
struct row_share {
  static constexpr std::int32_t block_groups = 64;

  std::int32_t n_blocks;     // of the row, mass_block numbers each
  std::int32_t merged_bits;  // 2^merged_bits groups share one maximum, where there would be too many

  // Pairs of blocks are dealt out to the cluster in turn.
  ESPALIER_HOST_DEVICE std::int32_t own_pairs(const row_team& team) const {
    return ((n_blocks + 1) / 2 - team.rank + team.size - 1) / team.size;
  }
  ESPALIER_HOST_DEVICE std::int32_t own_blocks(const row_team& team) const { return 2 * own_pairs(team); }
  ESPALIER_HOST_DEVICE std::int32_t own_maxima(const row_team& team) const {
    return (own_blocks(team) * block_groups) >> merged_bits;
  }
  // The block of the row that is the own-th of this block of threads; and back.
  ESPALIER_HOST_DEVICE static std::int32_t block_at(const row_team& team, std::int32_t own) {
    return 2 * (own / 2 * team.size + team.rank) + own % 2;
  }
  ESPALIER_HOST_DEVICE static std::int32_t rank_of(const row_team& team, std::int32_t block) {
    return block / 2 % team.size;
  }
  ESPALIER_HOST_DEVICE static std::int32_t own_of(const row_team& team, std::int32_t block) {
    return 2 * (block / 2 / team.size) + block % 2;
  }

  // For a row of `vocab` numbers that `team` reads.
  static row_share of(std::int32_t vocab, const row_team& team) {
    constexpr std::int32_t most = 11264;  // 99 KiB a block, which every device grants, hold these and the rest
    constexpr auto block = static_cast<std::int32_t>(espalier::detail::mass_block);
    row_share share{(vocab + block - 1) / block, 0};
    while (share.own_maxima(team) > most)
      ++share.merged_bits;
    return share;
  }
};

struct selection_memory {
  static constexpr int bins = 513;
  static constexpr int room = 2048;

  std::uint64_t own[room];  // what this block has found
  std::uint64_t all[room];  // what the cluster has found
  std::uint32_t counts[2][bins];
  std::uint32_t warp_sums[32];
  std::uint32_t n_own;
  std::uint32_t largest;  // order of the largest number that this block has read
  std::uint32_t bin[2], above, within;
};

// Copies what all blocks have found to memory.all of each; how much it is. Pre: a barrier of the team; there is room.
__device__ inline std::int32_t gather_found(const row_team& team, selection_memory& memory) {
  std::int32_t first = 0;
  for (std::int32_t r = 0; r < team.size; ++r) {
    const auto counted = static_cast<std::int32_t>(*team.of(r, &memory.n_own));
    const std::int32_t n = ::min(counted, selection_memory::room - first);
    const std::uint64_t* from = team.of(r, memory.own);
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n; i += static_cast<std::int32_t>(blockDim.x))
      memory.all[first + i] = from[i];
    first += n;
  }
  __syncthreads();
  return first;
}

// Calls emit(rank, key) for the keys from `begin` to before `end` in memory.all that are among the k largest of all n there. By
// the block.
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

// Finds the k largest numbers of a row, ties by lower token, from the largest of each group of numbers: a cluster of blocks
// works on one row. What reaches the k-th largest of these maxima, or hardly less, is read again and ranked by comparison with
// all others. Where too many reach it (ties; neighbours that are all large), counts by key narrow it down first.
//
// Pre         1 <= k <= 1024; the block has a multiple of 32 threads, 256 to 1024
template <class NumberT>
class row_selection {
 public:
  static constexpr std::int32_t max_k = 1024;

  __device__ row_selection(const row_reader<NumberT>& row, const row_team& team, const row_share& share,
                           selection_memory& memory, std::uint32_t* maxima)
      : row_(row), team_(team), share_(share), memory_(memory), maxima_(maxima) {}

  // Before the row is scanned; a barrier must follow.
  __device__ void open() {
    for (unsigned i = threadIdx.x; i < selection_memory::bins; i += blockDim.x)
      memory_.counts[0][i] = 0;
    if (share_.merged_bits > 0) {
      for (std::int32_t i = thread(); i < share_.own_maxima(team_); i += threads())
        maxima_[i] = 0;
    }
    if (threadIdx.x == 0) memory_.n_own = memory_.largest = 0;
  }

  // While the row is scanned: the largest of group `quarter` of 0 to 3 of the own-th block, by thread `lane` of 0 to 15.
  __device__ void put(std::int32_t own, std::int32_t quarter, std::int32_t lane, float largest) {
    const std::int32_t at = own * row_share::block_groups + quarter * 16 + lane;
    if (share_.merged_bits == 0) {
      maxima_[at] = order_of(largest);
    } else {
      atomicMax(&maxima_[at >> share_.merged_bits], order_of(largest));
    }
  }
  // The largest number that a thread has read; all lanes of the warp.
  __device__ void put_largest(float largest) {
    const std::uint32_t order = __reduce_max_sync(all_lanes, order_of(largest));
    if (threadIdx.x % 32 == 0) atomicMax(&memory_.largest, order);
  }
  // After the cluster's barrier. The largest number of the row.
  __device__ float largest() const {
    std::uint32_t order = 0;
    for (std::int32_t r = 0; r < team_.size; ++r)
      order = ::max(order, *team_.of(r, &memory_.largest));
    return number_at(order);
  }

  // After the cluster's barrier: every block has in memory.all, unordered, at least the k largest numbers from `least` on, all if
  // there are not so many. Most of them are expected from `likely` on. Returns how many there are, at most `room`.
  __device__ std::int32_t find(std::int32_t k, float least, float likely) {
    const std::uint64_t low = static_cast<std::uint64_t>(order_of(least)) << token_bits;
    const std::uint64_t high = static_cast<std::uint64_t>(order_of(largest())) << token_bits | token_mask;
    const std::uint64_t middle = static_cast<std::uint64_t>(order_of(likely)) << token_bits;
    const auto need = static_cast<std::uint32_t>(k);
    const auto each_maximum = [this](const auto& count) {
      for (std::int32_t i = thread(); i < share_.own_maxima(team_); i += threads())
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
    return gather_found(team_, memory_);
  }

  // Calls emit(rank, key) once for each of the n found that is among the k largest, somewhere in the cluster.
  template <class EmitT>
  __device__ void rank(std::int32_t n, std::int32_t k, const EmitT& emit) const {
    const std::int32_t part = (n + team_.size - 1) / team_.size;
    rank_found(memory_, team_.rank * part, ::min(n, (team_.rank + 1) * part), n, k, emit);
  }

 private:
  __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }
  __device__ static std::int32_t threads() { return static_cast<std::int32_t>(blockDim.x); }

  // A key that at least `need` of the keys in [low, high] reach, and not more than `enough` if it can be had with keys that
  // are multiples of 2^finest; low where fewer than `need` are there. `middle` is where it is expected to lie above. The same
  // in every thread of the cluster.
  template <class EachT>
  __device__ std::uint64_t narrow(const EachT& for_each_own, std::uint64_t low, std::uint64_t middle,
                                  std::uint64_t high, std::uint32_t need, std::uint32_t enough, int finest) {
    for (;;) {
      // Bin 0 is what lies below the middle.
      const int width = 64 - __clzll(static_cast<long long>(high - middle));
      const int shift = ::max(width - 9, finest);
      std::uint32_t* counts = memory_.counts[pass_ & 1U];
      for_each_own([&](std::uint64_t key) {
        if (key < low || key > high) return;
        atomicAdd(&counts[key < middle ? 0 : 1 + ((key - middle) >> shift)], 1U);
      });
      if (threadIdx.x == 0) memory_.bin[pass_ & 1U] = selection_memory::bins;
      team_.sync();
      // The blocks have read the other counts before the barrier.
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

  // The last bin with `need` keys in it and above it, over the whole cluster.
  __device__ void search(std::uint32_t* counts, std::uint32_t need) {
    constexpr std::int32_t most = (selection_memory::bins + 255) / 256;
    const std::int32_t each = (selection_memory::bins + threads() - 1) / threads();
    const std::int32_t last = selection_memory::bins - 1 - thread() * each;
    std::uint32_t count[most] = {};
    std::uint32_t sum = 0;
    for (std::int32_t i = 0; i < each && last - i >= 0; ++i) {
      for (std::int32_t r = 0; r < team_.size; ++r)
        count[i] += team_.of(r, counts)[last - i];
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

  // Calls f(key) for the own numbers whose keys reach `from`.
  template <class FunctionT>
  __device__ void for_each_from(std::uint64_t from, const FunctionT& f) const {
    for (std::int32_t i = thread(); i < share_.own_maxima(team_); i += threads()) {
      if ((static_cast<std::uint64_t>(maxima_[i]) << token_bits | token_mask) < from) continue;
      for (std::int32_t at = i << share_.merged_bits; at < (i + 1) << share_.merged_bits; ++at) {
        const std::int32_t block = share_.block_at(team_, at / row_share::block_groups);
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

  // How many numbers of the row reach `from`; those that this block has read are in memory.own where there is room.
  __device__ std::int32_t collect(std::uint64_t from) {
    for_each_from(from, [this](std::uint64_t key) {
      const std::uint32_t at = atomicAdd(&memory_.n_own, 1U);
      if (at < selection_memory::room) memory_.own[at] = key;
    });
    team_.sync();
    std::uint32_t n = 0;
    for (std::int32_t r = 0; r < team_.size; ++r)
      n += *team_.of(r, &memory_.n_own);
    return static_cast<std::int32_t>(n);
  }

  row_reader<NumberT> row_;
  row_team team_;
  row_share share_;
  selection_memory& memory_;
  std::uint32_t* maxima_;
  std::uint32_t pass_ = 0;
};

}  // namespace espalier::cuda::detail
