// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstddef>
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "espalier/core/token.hpp"
#include "espalier/cuda/tree_policy/best_first/prefix_nodes.cuh"
#include "espalier/tree_policy/best_first/marginal_heap.hpp"

namespace espalier::cuda::detail {

// What prefix_levels works in: shared memory.
template <std::int32_t threadsN, std::int32_t poolN>
struct prefix_pool {
  using scan = cub::BlockScan<std::int32_t, threadsN, cub::BLOCK_SCAN_WARP_SCANS>;

  // [poolN] prefixes that came into question, level after level, siblings by rank side by side; 0 is the root.
  float path[poolN];
  std::uint16_t parent[poolN];
  std::uint16_t rank[poolN];
  std::uint16_t number[poolN];  // in the tree; 0 for what is not taken
  std::uint8_t depth[poolN];
  std::int32_t index[poolN];  // of a level: its nodes' first children among all; in the end: the best by bucket
  std::int32_t in_bucket[threadsN];
  std::int32_t before[threadsN];  // prefixes in the buckets before
  std::int32_t filled[threadsN];
  typename scan::TempStorage scan_memory;
  float least;
  float scale;
  std::int32_t last_bucket;
};

// The most probable prefixes by levels, all threads of a block at once: exactly those that marginal_heap takes, in its
// order.
//
// Prefixes are sorted into buckets by a monotone function of their log-probability, the best into the first. Level
// after level, the children of what was found are put into the pool as far as their bucket may still hold one of the
// best; then the buckets are counted, and the first one with `budget` prefixes up to its end is the last that matters.
// In the end the place of a prefix is the number of those in the buckets before, and of those before it in its own.
//
// Exact, since (1) a sum of floats is monotone: a child's bucket is not before its parent's, nor an elder sibling's
// after a younger's, so that where a prefix is not looked at, neither its descendants nor its younger siblings lie in a
// bucket that matters; (2) all prefixes in buckets before a bucket are strictly better than those in it: with `budget`
// up to the last one, none after it is among the best; (3) within a bucket prefixes are compared as the heap compares
// them. Which bucket a prefix falls into changes the time alone.
template <std::int32_t threadsN, std::int32_t poolN>
class prefix_levels {
 public:
  using memory = prefix_pool<threadsN, poolN>;

  __device__ prefix_levels(memory& pool, const float* log_probs, std::int32_t n_rows, std::int32_t n_ranks,
                           std::int32_t budget)
      : pool_(pool),
        log_probs_(log_probs),
        n_rows_(n_rows),
        n_ranks_(n_ranks < budget ? n_ranks : budget),
        stride_(n_ranks),
        budget_(budget) {}

  // Takes the `budget` best prefixes, or all that have a probability, and returns how many; -1 where the pool is too
  // small for what comes into question, which takes very many equal prefixes. All threads of the block.
  //
  // Shapes      log_probs [n_rows][n_ranks], each row falling; taken [budget + 1]
  // Pre         log_probs <= 0; n_rows, n_ranks, budget > 0; budget <= max_prefixes
  __device__ std::int32_t take(const prefix_nodes& taken) {
    start(taken);
    std::int32_t begin = 0, end = 1;
    for (std::int32_t d = 0; d < n_rows_; ++d) {
      std::int32_t total = count_children(begin, end, d);
      if (total == 0) break;
      if (end + total > poolN) {
        expand<false>(begin, end, d, total);
        find_last_bucket();
        total = count_children(begin, end, d);
        if (end + total > poolN) return -1;
        write_children(begin, end, d, total);
      } else {
        expand<true>(begin, end, d, total);
        find_last_bucket();
      }
      begin = end;
      end += total;
    }
    return number(end, taken);
  }

 private:
  __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }

  // The root, and how log-probabilities become buckets.
  __device__ void start(const prefix_nodes& taken) {
    for (std::int32_t u = thread(); u <= budget_; u += threadsN)
      taken.node[u].n_children = 0;
    pool_.in_bucket[thread()] = 0;
    pool_.before[thread()] = 0;
    pool_.filled[thread()] = 0;
    for (std::int32_t i = thread(); i < poolN; i += threadsN)
      pool_.number[i] = 0;
    if (thread() < 32) set_scale(thread());
    __syncthreads();
    best_ = log_probs_[0];
    least_ = pool_.least;
    scale_ = pool_.scale;
  }

  // One warp: the bound of the heap, and where there is none, what no prefix with a probability is below.
  __device__ void set_scale(std::int32_t lane) {
    constexpr unsigned all = 0xFFFFFFFFU;
    float bound = -FLT_MAX;
    if (lane < 7 && 1 << lane <= n_rows_) bound = marginal_heap::bound_of_rows(log_probs_, 1 << lane, stride_, budget_);
    float sum = 0;
    for (std::int32_t d = lane; d < n_rows_; d += 32)
      sum += last_of_row(d);
    for (int distance = 16; distance > 0; distance /= 2) {
      const float other = __shfl_xor_sync(all, bound, distance);
      bound = other > bound ? other : bound;
      sum += __shfl_xor_sync(all, sum, distance);
    }
    if (lane != 0) return;
    const float best = log_probs_[0];
    const float floor = bound > sum ? bound : (sum > -FLT_MAX ? sum : -FLT_MAX);
    pool_.path[0] = 0;
    pool_.parent[0] = pool_.rank[0] = 0;
    pool_.depth[0] = 0;
    pool_.last_bucket = threadsN - 1;
    pool_.least = bound;
    pool_.scale = static_cast<float>(threadsN) / (best - floor);
  }

  // The last log-probability of a row that is not minus infinity; 0 where all are.
  __device__ float last_of_row(std::int32_t d) const {
    const float* row = log_probs_ + static_cast<std::ptrdiff_t>(d) * stride_;
    std::int32_t low = 0, high = n_ranks_;
    while (low + 1 < high) {
      const std::int32_t middle = (low + high) / 2;
      (row[middle] >= -FLT_MAX ? low : high) = middle;
    }
    return row[low] >= -FLT_MAX ? row[low] : 0.0F;
  }

  // Monotone; threadsN, a bucket that never matters, for what is below the bound or has no probability.
  __device__ std::int32_t bucket_of(float path) const {
    if (!(path >= least_)) return threadsN;
    const float place = (best_ - path) * scale_;
    return place < static_cast<float>(threadsN - 1) ? static_cast<std::int32_t>(place) : threadsN - 1;
  }

  // For each node of a level, where its children begin among those of the level that may matter; returns their number.
  __device__ std::int32_t count_children(std::int32_t begin, std::int32_t end, std::int32_t row) {
    const std::int32_t last = pool_.last_bucket;
    std::int32_t total = 0;
    for (std::int32_t first = begin; first < end; first += threadsN) {
      const std::int32_t i = first + thread();
      std::int32_t n = i < end ? n_children(pool_.path[i], row, last) : 0;
      std::int32_t before = 0, all = 0;
      typename memory::scan(pool_.scan_memory).ExclusiveSum(n, before, all);
      if (i < end) pool_.index[i - begin] = total + before;
      total += all;
      __syncthreads();
    }
    return total;
  }

  // The ranks whose tokens lead from `path` into buckets up to the last one that matters: the first ones.
  __device__ std::int32_t n_children(float path, std::int32_t row, std::int32_t last) const {
    const float* log_probs = log_probs_ + static_cast<std::ptrdiff_t>(row) * stride_;
    std::int32_t low = 0, high = n_ranks_;
    while (low < high) {
      const std::int32_t middle = (low + high) / 2;
      if (bucket_of(path + log_probs[middle]) <= last) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  // Child s of all the children of a level.
  struct child {
    std::int32_t parent;
    std::int32_t rank;
    float path;
  };
  __device__ child child_of_level(std::int32_t begin, std::int32_t end, std::int32_t row, std::int32_t s) const {
    std::int32_t low = 0, high = end - begin;  // the last node whose children begin at s or before
    while (low + 1 < high) {
      const std::int32_t middle = (low + high) / 2;
      (pool_.index[middle] <= s ? low : high) = middle;
    }
    const std::int32_t rank = s - pool_.index[low];
    return {begin + low, rank, pool_.path[begin + low] + log_probs_[static_cast<std::ptrdiff_t>(row) * stride_ + rank]};
  }

  __device__ void put(std::int32_t at, const child& c, std::int32_t row) {
    pool_.path[at] = c.path;
    pool_.parent[at] = static_cast<std::uint16_t>(c.parent);
    pool_.rank[at] = static_cast<std::uint16_t>(c.rank);
    pool_.depth[at] = static_cast<std::uint8_t>(row + 1);
  }

  // Counts the children of a level by bucket, and puts them into the pool.
  template <bool into_poolN>
  __device__ void expand(std::int32_t begin, std::int32_t end, std::int32_t row, std::int32_t total) {
    for (std::int32_t s = thread(); s < total; s += threadsN) {
      const child c = child_of_level(begin, end, row, s);
      if constexpr (into_poolN) put(end + s, c, row);
      atomicAdd(&pool_.in_bucket[bucket_of(c.path)], 1);
    }
    __syncthreads();
  }

  __device__ void write_children(std::int32_t begin, std::int32_t end, std::int32_t row, std::int32_t total) {
    for (std::int32_t s = thread(); s < total; s += threadsN)
      put(end + s, child_of_level(begin, end, row, s), row);
    __syncthreads();
  }

  // The first bucket up to whose end there are `budget` prefixes is the last one that matters.
  __device__ void find_last_bucket() {
    const std::int32_t n = pool_.in_bucket[thread()];
    std::int32_t before = 0;
    typename memory::scan(pool_.scan_memory).ExclusiveSum(n, before);
    pool_.before[thread()] = before;
    if (before < budget_ && before + n >= budget_) pool_.last_bucket = thread();
    __syncthreads();
  }

  // Whether pool entry a, of the same bucket as b, is better.
  __device__ bool is_before(std::int32_t a, std::int32_t b) const {
    if (pool_.path[a] != pool_.path[b]) return pool_.path[a] > pool_.path[b];
    const auto ancestry = [this](std::int32_t u) { return step{pool_.parent[u], pool_.rank[u], pool_.depth[u]}; };
    return a != b &&
           espalier::detail::precedes(pool_.parent[a], pool_.rank[a], pool_.parent[b], pool_.rank[b], ancestry);
  }
  struct step {
    std::int32_t parent, rank, depth;
  };

  // Gives the best their numbers in the tree.
  __device__ std::int32_t number(std::int32_t end, const prefix_nodes& taken) {
    const std::int32_t last = pool_.last_bucket;
    for (std::int32_t i = 1 + thread(); i < end; i += threadsN) {
      const std::int32_t b = bucket_of(pool_.path[i]);
      if (b <= last) pool_.index[pool_.before[b] + atomicAdd(&pool_.filled[b], 1)] = i;
    }
    __syncthreads();
    const std::int32_t n_sorted = pool_.before[last] + pool_.in_bucket[last];
    const std::int32_t n = n_sorted < budget_ ? n_sorted : budget_;
    for (std::int32_t k = thread(); k < n_sorted; k += threadsN) {
      const std::int32_t i = pool_.index[k];
      const std::int32_t b = bucket_of(pool_.path[i]);
      std::int32_t place = pool_.before[b];
      for (std::int32_t other = pool_.before[b], after = other + pool_.in_bucket[b]; other < after && place < n;
           ++other)
        place += is_before(pool_.index[other], i) ? 1 : 0;
      if (place < n) pool_.number[i] = static_cast<std::uint16_t>(place + 1);
    }
    __syncthreads();
    for (std::int32_t i = thread(); i < end; i += threadsN)
      if (i == 0 || pool_.number[i] > 0) write(i, end, taken);
    __syncthreads();
    return n;
  }

  // A node, its number of children apart, which the last of them knows: siblings stand side by side, and those that
  // were taken come first.
  __device__ void write(std::int32_t i, std::int32_t end, const prefix_nodes& taken) {
    const std::int32_t u = pool_.number[i], above = pool_.number[pool_.parent[i]];
    prefix_node& node = taken.node[u];
    node.path_log_prob = pool_.path[i];
    node.depth = pool_.depth[i];
    node.parent = static_cast<std::int16_t>(above);
    node.rank = static_cast<std::int16_t>(pool_.rank[i]);
    if (i == 0) return;
    const bool has_next = i + 1 < end && pool_.parent[i + 1] == pool_.parent[i] && pool_.number[i + 1] > 0;
    taken.next_sibling[u] = has_next ? static_cast<std::int16_t>(pool_.number[i + 1]) : std::int16_t{0};
    if (!has_next) taken.node[above].n_children = static_cast<std::int16_t>(pool_.rank[i] + 1);
  }

  memory& pool_;
  const float* log_probs_;
  std::int32_t n_rows_;
  std::int32_t n_ranks_;  // that may matter
  std::int32_t stride_;
  std::int32_t budget_;
  float best_ = 0;
  float least_ = 0;
  float scale_ = 0;
};

}  // namespace espalier::cuda::detail
