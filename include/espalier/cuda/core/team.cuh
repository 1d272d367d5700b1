// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/core/sums.hpp"

namespace espalier::cuda {

static_assert(std::is_same_v<wide_number, double>, "device code reckons in double: ESPALIER_WIDE_NUMBER is for hosts");

namespace detail {

inline constexpr unsigned all_lanes = 0xFFFFFFFFU;

// Functions for the blocks of a cluster. A block that was launched without a cluster is alone; so is every block in
// code for architectures before 9.0, which have no clusters.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
__device__ inline unsigned cluster_blocks() {
  return cooperative_groups::this_cluster().num_blocks();
}
__device__ inline unsigned cluster_rank() {
  return cooperative_groups::this_cluster().block_rank();
}
__device__ inline void sync_cluster() {
  cooperative_groups::this_cluster().sync();
}
using cluster_arrival = cooperative_groups::cluster_group::arrival_token;
__device__ inline cluster_arrival arrive_at_cluster() {
  return cooperative_groups::this_cluster().barrier_arrive();
}
__device__ inline void await_cluster(cluster_arrival arrival) {
  cooperative_groups::this_cluster().barrier_wait(static_cast<cluster_arrival&&>(arrival));
}
template <class ValueT>
__device__ ValueT* in_block(ValueT* shared, unsigned rank) {
  return cooperative_groups::this_cluster().map_shared_rank(shared, rank);
}
#else
__device__ inline unsigned cluster_blocks() {
  return 1;
}
__device__ inline unsigned cluster_rank() {
  return 0;
}
__device__ inline void sync_cluster() {
  __syncthreads();
}
struct cluster_arrival {};
__device__ inline cluster_arrival arrive_at_cluster() {
  return {};
}
__device__ inline void await_cluster(cluster_arrival) {}
template <class ValueT>
__device__ ValueT* in_block(ValueT* shared, unsigned) {
  return shared;
}
#endif

// Adds up over lanes whose numbers differ by Lanes / 2, Lanes / 4 and so on down to `last`. Every lane gets a sum; with
// last = 1 it is the sum over its group of Lanes lanes.
template <int Lanes, class NumberT>
__device__ NumberT halve_in_warp(NumberT sum, int last = 1) {
  for (int half = Lanes / 2; half >= last; half /= 2)
    sum += __shfl_xor_sync(all_lanes, sum, half);
  return sum;
}

// The function by which one warp adds up the terms from `begin` to end - 1, at most mass_block terms; every lane gets
// the sums.
struct one_warp {
  template <class... TermsT>
  __device__ espalier::detail::sums<sizeof...(TermsT)> operator()(std::size_t begin, std::size_t end,
                                                                  const TermsT&... terms) const {
    using number = espalier::detail::term_type<TermsT...>;
    constexpr std::size_t n = sizeof...(TermsT);
    number low[n] = {}, high[n] = {};  // running sums `lane` and `lane + 32`
    const auto add = [&](number(&sum)[n], std::size_t i) {
      std::size_t k = 0;
      ((sum[k++] += espalier::detail::term(terms, i)), ...);
    };
    const std::size_t first = begin + threadIdx.x % 32;
    if (end - begin == espalier::detail::mass_block) {
      // Unrolled, so that all terms are loaded before the first is added.
      ESPALIER_UNROLL
      for (unsigned i = 0; i < espalier::detail::mass_block; i += espalier::detail::mass_lanes)
        add(low, first + i), add(high, first + i + 32);
    } else {
      for (std::size_t i = first; i < end; i += espalier::detail::mass_lanes) {
        add(low, i);
        if (i + 32 < end) add(high, i + 32);
      }
    }
    espalier::detail::sums<n> total;
    for (std::size_t k = 0; k < n; ++k)
      total.of[k] = halve_in_warp<8>(static_cast<double>(halve_in_warp<32>(low[k] + high[k], 8)));
    return total;
  }
};

// Finds where r lands among terms, as espalier::detail::alone does, with one warp; every lane gets the result. `before`
// is the sum of the terms before `begin`. The sums on the way are bit for bit those of one thread.
template <class TermsT>
__device__ espalier::detail::landing land_in_warp(double r, double before, const TermsT& terms, std::size_t begin,
                                                  std::size_t end) {
  constexpr int lanes = 32;
  const std::size_t lane = threadIdx.x % lanes;
  espalier::detail::landing found;
  for (std::size_t first = begin; first < end; first += lanes) {
    double weight = first + lane < end ? static_cast<double>(espalier::detail::term(terms, first + lane)) : 0.0;
    if (!(weight > 0)) weight = 0;
    double before_mine = 0;
    ESPALIER_UNROLL
    for (int l = 0; l < lanes; ++l) {
      if (lane == static_cast<std::size_t>(l)) before_mine = before;
      before += __shfl_sync(all_lanes, weight, l);
    }
    const unsigned there = __ballot_sync(all_lanes, weight > 0);
    if (there == 0) continue;
    const unsigned beyond = __ballot_sync(all_lanes, weight > 0 && r < before_mine + weight);
    const int at = beyond != 0 ? __ffs(static_cast<int>(beyond)) - 1 : 31 - __clz(static_cast<int>(there));
    found = {static_cast<std::int32_t>(first) + at, __shfl_sync(all_lanes, before_mine, at)};
    if (beyond != 0) break;
  }
  return found;
}

}  // namespace detail

//! The threads that work together on one row: those of a block, or of all blocks of a thread block cluster. All of them
//! call the functions below in the same order with the same arguments (reduce takes each thread's own value), and get
//! the same results, bit for bit those of one host thread. Trivially copyable, used in kernels. A team without memory
//! has only those functions that need none: each, add, sync, arrive, wait, in_block and of_block_by_lane.
//!
//! Complexity  sums_of, parts_of: one pass, a barrier of the team and one of the block; reduce: a barrier of the block,
//!             and one of the team if that has several blocks; groups_of and land: one barrier of the block; once:
//!             likewise if f returns something; each and add: none
//! Pre         blocks of whole warps, along x; clusters of at most 16 blocks, along x
class team {
 public:
  //! The shared memory that a team needs in each of its blocks, at the same address in all of them. The first index is
  //! the number of the call modulo 2.
  struct memory {
    double part[2][2][espalier::detail::most_parts];  // [call][sum][part], the same in all blocks
    unsigned long long block_value[2][16];            // [call][block], the same in all blocks
    double group[2][espalier::detail::part_groups];   // [call][group]
    unsigned long long warp_value[2][32];             // [call][warp]
    alignas(16) unsigned char told[2][64];            // [call]
  };

  //! How many calls have used the memory: of those that the whole team takes part in, and of those within a block. The
  //! parity selects the half of the memory that the next call uses. Each thread has its own turns. A result that a call
  //! leaves in the memory is overwritten by the next call but one.
  struct turns {
    unsigned in_team = 0;
    unsigned in_block = 0;
  };

  //! A team without memory.
  __device__ team() : blocks_(detail::cluster_blocks()), block_(detail::cluster_rank()) {}
  //! A team with memory. Ends with sync().
  __device__ team(memory& shared, turns& next)
      : shared_(&shared), next_(&next), blocks_(detail::cluster_blocks()), block_(detail::cluster_rank()) {
    next = {};
    sync();
  }

  //! Number of this team among the teams of its row of the grid: the kernel's grid may have several rows of teams,
  //! along y.
  __device__ static std::int32_t number() { return static_cast<std::int32_t>(blockIdx.x / detail::cluster_blocks()); }

  __device__ unsigned rank() const { return block_ * blockDim.x + threadIdx.x; }
  __device__ unsigned size() const { return blocks_ * blockDim.x; }
  __device__ std::int32_t block() const { return static_cast<std::int32_t>(block_); }
  __device__ std::int32_t blocks() const { return static_cast<std::int32_t>(blocks_); }

  //! Returns the address, in block `r` of the team, of the object that this block has at `mine`. Pre: no block ends
  //! before the others have read the object
  template <class ElementT>
  __device__ ElementT* in_block(std::int32_t r, ElementT* mine) const {
    return blocks_ > 1 ? detail::in_block(mine, static_cast<unsigned>(r)) : mine;
  }

  //! Waits for all threads of the team. Everything that they wrote before sync() is seen after it, in global memory
  //! too.
  __device__ void sync() const {
    if (blocks_ > 1) {
      detail::sync_cluster();
    } else {
      __syncthreads();
    }
  }

  //! sync() in two halves: everything written before arrive() is seen after wait(). In a team of several blocks, work
  //! between the halves delays no other thread; in one block, wait() alone is the barrier.
  __device__ detail::cluster_arrival arrive() const {
    return blocks_ > 1 ? detail::arrive_at_cluster() : detail::cluster_arrival{};
  }
  __device__ void wait(detail::cluster_arrival arrival) const {
    if (blocks_ > 1) {
      detail::await_cluster(arrival);
    } else {
      __syncthreads();
    }
  }

  //! Returns, in lane r of each warp, the value that block r has at `mine`, and `other` in lanes that have no block. No
  //! barrier. Pre: as in_block.
  template <class ElementT>
  __device__ ElementT of_block_by_lane(ElementT* mine, ElementT other) const {
    const unsigned lane = threadIdx.x % 32;
    return lane < blocks_ ? *in_block(static_cast<std::int32_t>(lane), mine) : other;
  }

  //! The sum of f(i) or f[i] for 0 <= i < n.
  template <class TermsT>
  __device__ double sum_of(std::size_t n, const TermsT& f) const {
    return sums_of(n, f).of[0];
  }

  //! The sums of at most two functions over 0 <= i < n, in one pass.
  template <class... TermsT>
  __device__ espalier::detail::sums<sizeof...(TermsT)> sums_of(std::size_t n, const TermsT&... f) const {
    static_assert(sizeof...(TermsT) <= 2);
    return add_up(espalier::detail::parting(n), next_->in_team++ % 2, f...);
  }

  //! Calls f(i) for 0 <= i < n. Thread r takes r, r + size(), and so on.
  template <class FunctionT>
  __device__ void each(std::size_t n, const FunctionT& f) const {
    for (std::size_t i = rank(); i < n; i += size())
      f(i);
  }

  //! Adds x to `sum`, to which all threads add, in memory that all of them see.
  __device__ void add(unsigned long long& sum, unsigned long long x) const { atomicAdd(&sum, x); }

  //! Combines one value of each thread, of 4 or 8 bytes, for all threads. The result of `combine` must not depend on
  //! the order of the values: max, min, sums of integers.
  template <class ValueT, class CombineT>
  __device__ ValueT reduce(ValueT value, const CombineT& combine) const {
    for (int half = 16; half > 0; half /= 2)
      value = combine(value, __shfl_xor_sync(detail::all_lanes, value, half));
    ValueT* const of_warp = as<ValueT>(shared_->warp_value[next_->in_block++ % 2]);
    if (threadIdx.x % 32 == 0) of_warp[warp()] = value;
    __syncthreads();
    value = of_warp[0];
    for (unsigned w = 1; w < warps(); ++w)
      value = combine(value, of_warp[w]);
    if (blocks_ == 1) return value;
    ValueT* const of_block = as<ValueT>(shared_->block_value[next_->in_team++ % 2]);
    if (threadIdx.x < blocks_) *detail::in_block(of_block + block_, threadIdx.x) = value;
    sync();
    value = of_block[0];
    for (unsigned b = 1; b < blocks_; ++b)
      value = combine(value, of_block[b]);
    return value;
  }

  //! Finds where r lands among terms begin to end - 1, as one host thread finds it; `before` is the sum of the terms
  //! before them. One warp of each block looks for it.
  template <class TermsT>
  __device__ espalier::detail::landing land(double r, double before, const TermsT& terms, std::size_t begin,
                                            std::size_t end) const {
    espalier::detail::landing found;
    if (warp() == 0) found = detail::land_in_warp(r, before, terms, begin, end);
    return once([&] { return found; });
  }

  //! Calls f() in one thread of each block and returns its result, at most 64 bytes, in all threads. If f returns
  //! nothing, nobody waits for it.
  template <class FunctionT>
  __device__ auto once(const FunctionT& f) const {
    using value = decltype(f());
    if constexpr (std::is_void_v<value>) {
      if (threadIdx.x == 0) f();
    } else {
      value* const told = as<value>(shared_->told[next_->in_block++ % 2]);
      if (threadIdx.x == 0) *told = f();
      __syncthreads();
      return *told;
    }
  }

  //! The sum of each part of a row and the total, for a draw. Pre: `of` is read before the next call but one of a
  //! function that counts in turns::in_team: sum_of, sums_of, parts_of, and, in a team of several blocks, reduce.
  struct parts {
    const double* of;
    double total;
  };
  template <class TermsT>
  __device__ parts parts_of(const espalier::detail::parting& cut, const TermsT& f) const {
    const unsigned call = next_->in_team++ % 2;
    const double total = add_up(cut, call, f).of[0];
    return {shared_->part[call][0], total};
  }

  //! The sums of the groups of one part. Pre: `of` is read before the next call but one of a function that counts in
  //! turns::in_block: sum_of, sums_of, parts_of, groups_of, reduce, land, and once if its f returns something.
  struct groups {
    const double* of;
  };
  template <class TermsT>
  __device__ groups groups_of(const espalier::detail::parting& cut, std::size_t part, const TermsT& f) const {
    double* const found = shared_->group[next_->in_block++ % 2];
    for (unsigned g = warp(); g < espalier::detail::part_groups; g += warps()) {
      const std::size_t end = cut.begin(part, g + 1);
      const double sum = espalier::detail::within(f, cut.begin(part, g), end, [&](const auto& t) {
        double lane_sum = 0;
        for (std::size_t i = cut.begin(part, g) + threadIdx.x % 32; i < end; i += 32)
          lane_sum += static_cast<double>(espalier::detail::term(t, i));
        return detail::halve_in_warp<32>(lane_sum);
      });
      if (threadIdx.x % 32 == 0) found[g] = sum;
    }
    __syncthreads();
    return {found};
  }

 private:
  __device__ static unsigned warp() { return threadIdx.x / 32; }
  __device__ static unsigned warps() { return blockDim.x / 32; }

  template <class ValueT, class MemoryT>
  __device__ static ValueT* as(MemoryT& memory) {
    static_assert(sizeof(ValueT) <= (sizeof(memory[0]) == 1 ? sizeof memory : sizeof(memory[0])));
    return reinterpret_cast<ValueT*>(memory);
  }

  // Adds up with one warp for each part. Every block gets the sums of all parts, and its first warp adds these up.
  template <class... TermsT>
  __device__ espalier::detail::sums<sizeof...(TermsT)> add_up(const espalier::detail::parting& cut, unsigned call,
                                                              const TermsT&... f) const {
    constexpr std::size_t n = sizeof...(TermsT);
    const unsigned lane = threadIdx.x % 32;
    for (std::size_t part = warp() * blocks_ + block_; part < cut.count; part += warps() * blocks_) {
      const auto found = espalier::detail::part_sums(detail::one_warp(), cut, part, f...);
      for (std::size_t k = 0; k < n && lane < blocks_; ++k)
        *detail::in_block(&shared_->part[call][k][part], lane) = found.of[k];
    }
    sync();
    espalier::detail::sums<n> sum;
    if (warp() == 0) {
      for (std::size_t k = 0; k < n; ++k) {
        for (std::size_t part = lane; part < cut.count; part += espalier::detail::part_lanes)
          sum.of[k] += shared_->part[call][k][part];
        sum.of[k] = detail::halve_in_warp<32>(sum.of[k]);
      }
    }
    return once([&] { return sum; });
  }

  memory* shared_ = nullptr;
  turns* next_ = nullptr;
  unsigned blocks_;
  unsigned block_;
};

}  // namespace espalier::cuda
