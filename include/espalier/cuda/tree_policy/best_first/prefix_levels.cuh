// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/tree_policy/growth/append_draws.cuh"
#include "espalier/tree_policy/best_first/marginal_heap.hpp"

namespace espalier::cuda {

//! Lists of the most probable tokens of the rows of blocks, in the memory of the device.
//!
//! Shapes      tokens, log_probs: [places][n_rows][n_ranks], the most probable first; a log-probability of minus
//!             infinity ends a list
struct prefix_lists {
  const token_id* tokens = nullptr;
  const float* log_probs = nullptr;
  std::int32_t n_rows = 0;
  std::int32_t n_ranks = 0;

  //! The lists of one text.
  ESPALIER_HOST_DEVICE prefix_lists of(std::int32_t place) const {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * n_rows * n_ranks;
    return {tokens + first, log_probs + first, n_rows, n_ranks};
  }
};

namespace detail {

// The shared memory in which prefix_levels works.
template <std::int32_t threadsN>
struct prefix_pool {
  static constexpr std::int32_t room = 4 * threadsN;

  // [room] prefixes that may be among the best, level after level; the prefixes of a level are in lexicographic order.
  // Prefix 0 is the root.
  float path[room];
  std::int32_t first_child[room];  // index of its first child, if it has any
  std::uint16_t parent[room];
  std::uint16_t rank[room];
  std::uint16_t number[room];  // number in the tree; 0 if it is not taken
  std::uint8_t depth[room];
  std::uint16_t by_bucket[room];      // [room] the prefixes up to the last bucket that matters, by bucket
  std::uint16_t taken[threadsN + 1];  // number in the tree -> prefix
  std::int32_t in_bucket[threadsN];   // number of prefixes in the bucket
  std::int32_t before[threadsN];      // number of prefixes in the buckets before
  std::int32_t filled[threadsN];      // number of the bucket's prefixes that are in by_bucket already
  warp_sums sums;
  float bound_of_rows, bound_of_pairs, floor;  // see set_bounds
  std::int32_t last_bucket;
};

// Returns the number of ranks i with i <= m, plus the number of pairs of ranks i and j with i * j <= m; ranks count
// from 1.
constexpr std::int32_t n_pairs_within(std::int32_t m) {
  std::int32_t n = m;
  for (std::int32_t i = 1; i <= m; ++i)
    n += m / i;
  return n;
}

// A search for the most probable prefixes, level by level, with all threads of a block. It finds exactly the prefixes
// that marginal_heap takes, in the same order.
//
// Prefixes are sorted into buckets by a monotone function of their log-probability, the best into the first. Level
// after level, the children of the prefixes in the pool are added to it, if their bucket may still hold one of the
// best. Then the prefixes of each bucket are counted. The first bucket up to whose end there are `budget` prefixes is
// the last bucket that matters. At the end the rank of a prefix is the number of prefixes in the buckets before, plus
// the number of better ones in its own bucket. If the pool is too small for a level, the counts still tell the last
// bucket that matters, and everything begins again with that bound.
//
// The result is exact for three reasons. (1) A sum of floats is monotone: a child's bucket is not before its parent's,
// and among siblings the bucket of a less probable token is not before that of a more probable one. So if a prefix does
// not lie in a bucket that matters, neither do its descendants and its siblings of less probable tokens. (2) All
// prefixes in the buckets before a bucket are strictly better than the prefixes in it: with `budget` prefixes up to the
// last bucket that matters, no prefix after it is among the best. (3) Within a bucket prefixes are compared as the heap
// compares them. The choice of the function changes only the time.
template <std::int32_t threadsN>
class prefix_levels {
 public:
  using memory = prefix_pool<threadsN>;

  // `pairs` is such that n_pairs_within(pairs) >= budget.
  __device__ prefix_levels(memory& pool, const prefix_lists& lists, const float* log_probs, std::int32_t budget,
                           std::int32_t pairs)
      : pool_(pool),
        log_probs_(log_probs),
        n_rows_(lists.n_rows),
        n_ranks_(lists.n_ranks < budget ? lists.n_ranks : budget),
        stride_(lists.n_ranks),
        budget_(budget),
        pairs_(pairs) {}

  // Takes the `budget` best prefixes, or all whose probability is above 0, and returns how many there are; -1 if the
  // pool is too small for the prefixes that may be among the best, because very many are equally or almost equally
  // probable. Called by all threads of the block.
  //
  // Shapes      log_probs [n_rows][n_ranks], each row falling
  // Pre         log_probs <= 0; n_rows, n_ranks > 0; 0 < budget <= threadsN
  __device__ std::int32_t take() {
    constexpr std::int32_t attempts = 8;
    start();
    for (std::int32_t i = 0; i < attempts; ++i) {
      const std::int32_t last = pool_.last_bucket;
      if (grow()) return number();
      if (pool_.last_bucket == last) return -1;
      pool_.in_bucket[thread()] = 0;
      __syncthreads();
    }
    return -1;
  }

  // Writes the n prefixes that were taken into the tree, which holds the root alone, as if each had been appended in
  // turn.
  __device__ void write(const tree_writer& tree, const prefix_lists& lists, std::int32_t n) const {
    append_draws(tree, {1, 0}, n, n, n, [&](std::int32_t i) {
      const std::int32_t p = pool_.taken[i + 1];
      const std::int32_t rank = pool_.rank[p], depth = pool_.depth[p];
      const std::ptrdiff_t place = static_cast<std::ptrdiff_t>(depth - 1) * lists.n_ranks + rank;
      return listed_draw{.above = pool_.number[pool_.parent[p]],
                         .token = lists.tokens[place],
                         .log_prob = lists.log_probs[place],
                         .depth = depth,
                         .path_log_prob = pool_.path[p],
                         .number = i,
                         .node = i,
                         .next = is_taken_child(p + 1, pool_.parent[p]) ? pool_.number[p + 1] - 1 : -1,
                         .is_first = rank == 0,
                         .is_leaf = !is_taken_child(pool_.first_child[p], p)};
    });
  }

 private:
  __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }

  // Sets up the root, and the function from log-probabilities to buckets.
  __device__ void start() {
    pool_.in_bucket[thread()] = pool_.before[thread()] = pool_.filled[thread()] = 0;
    if (thread() < 32) set_bounds(thread());
    __syncthreads();
    best_ = log_probs_[0];
    least_ = pool_.bound_of_rows > pool_.bound_of_pairs ? pool_.bound_of_rows : pool_.bound_of_pairs;
    const float floor = least_ > pool_.floor ? least_ : pool_.floor;
    scale_ = static_cast<float>(threadsN) / (best_ - floor);
  }

  // Sets bound_of_rows and bound_of_pairs, log-probabilities that at least `budget` prefixes reach, and floor, below
  // which no prefix of a probability above 0 lies. Called by one warp.
  __device__ void set_bounds(std::int32_t lane) {
    float of_rows = -FLT_MAX;
    if (lane < 7 && 1 << lane <= n_rows_)
      of_rows = marginal_heap::bound_of_rows(log_probs_, 1 << lane, stride_, budget_);
    const bool has_pairs = n_rows_ > 1 && pairs_ <= n_ranks_;
    float of_pairs = has_pairs ? 0.0F : -FLT_MAX;
    for (std::int32_t i = lane + 1; has_pairs && i <= pairs_; i += 32) {
      const float path = log_probs_[i - 1] + log_probs_[stride_ + pairs_ / i - 1];
      of_pairs = path < of_pairs ? path : of_pairs;
    }
    float floor = 0;
    for (std::int32_t d = lane; d < n_rows_; d += 32)
      floor += last_of_row(d);
    for (int distance = 16; distance > 0; distance /= 2) {
      of_rows = fmaxf(of_rows, __shfl_xor_sync(all_lanes, of_rows, distance));
      of_pairs = fminf(of_pairs, __shfl_xor_sync(all_lanes, of_pairs, distance));
      floor += __shfl_xor_sync(all_lanes, floor, distance);
    }
    if (lane != 0) return;
    pool_.path[0] = 0;
    pool_.parent[0] = pool_.rank[0] = pool_.number[0] = 0;
    pool_.depth[0] = 0;
    pool_.last_bucket = threadsN - 1;
    pool_.bound_of_rows = of_rows;
    pool_.bound_of_pairs = fmaxf(of_pairs, -FLT_MAX);
    pool_.floor = fmaxf(floor, -FLT_MAX);
  }

  // Returns the last log-probability of a row that is not minus infinity; 0 if all are.
  __device__ float last_of_row(std::int32_t d) const {
    const float* row = log_probs_ + static_cast<std::ptrdiff_t>(d) * stride_;
    std::int32_t low = 0, high = n_ranks_;
    while (low + 1 < high) {
      const std::int32_t middle = (low + high) / 2;
      (row[middle] >= -FLT_MAX ? low : high) = middle;
    }
    return row[low] >= -FLT_MAX ? row[low] : 0.0F;
  }

  // Returns the bucket of a path: a monotone function of its log-probability. Pre: reaches(path, b) is true for some b
  __device__ std::int32_t bucket_of(float path) const {
    const float place = (best_ - path) * scale_;
    return place < static_cast<float>(threadsN - 1) ? static_cast<std::int32_t>(place) : threadsN - 1;
  }

  // True if a path lies in bucket `last` or before; false if it is below the bound or has no probability.
  __device__ bool reaches(float path, std::int32_t last) const {
    return path >= least_ && (last == threadsN - 1 || (best_ - path) * scale_ < static_cast<float>(last + 1));
  }

  // Fills the pool level by level. Returns false if the pool is too small; last_bucket may have become smaller then.
  __device__ bool grow() {
    std::int32_t begin = 0;
    end_ = 1;
    for (std::int32_t d = 0; d < n_rows_; ++d) {
      const std::int32_t total = count_children(begin, d);
      if (total == 0) break;
      const bool fits = end_ + total <= memory::room;
      expand(begin, d, total, fits);
      find_last_bucket();
      if (!fits) return false;
      begin = end_;
      end_ += total;
    }
    return true;
  }

  // Counts, for each node of the level from `begin` on, the children that may matter, and sets first_child, the index
  // at which these children will begin. Returns how many children there are in all.
  __device__ std::int32_t count_children(std::int32_t begin, std::int32_t row) {
    const std::int32_t last = pool_.last_bucket;
    std::int32_t total = 0;
    for (std::int32_t first = begin; first < end_; first += threadsN) {
      const std::int32_t p = first + thread();
      const running_sum sum = sum_before(p < end_ ? n_children(pool_.path[p], row, last) : 0, pool_.sums);
      if (p < end_) pool_.first_child[p] = end_ + total + sum.before;
      total += sum.all;
      __syncthreads();
    }
    return total;
  }

  // Returns the number of ranks, from the first on, whose tokens lead from `path` into buckets up to `last`. The search
  // takes O(log(result)) steps.
  __device__ std::int32_t n_children(float path, std::int32_t row, std::int32_t last) const {
    const float* log_probs = log_probs_ + static_cast<std::ptrdiff_t>(row) * stride_;
    std::int32_t low = 0, step = 1;  // the first `low` ranks lead there
    while (low + step <= n_ranks_ && reaches(path + log_probs[low + step - 1], last)) {
      low += step;
      step *= 2;
    }
    for (step /= 2; step > 0; step /= 2) {
      if (low + step <= n_ranks_ && reaches(path + log_probs[low + step - 1], last)) low += step;
    }
    return low;
  }

  // Counts the children of a level by bucket, and puts them into the pool if they fit.
  __device__ void expand(std::int32_t begin, std::int32_t row, std::int32_t total, bool fits) {
    const float* log_probs = log_probs_ + static_cast<std::ptrdiff_t>(row) * stride_;
    for (std::int32_t p = end_ + thread(); p < end_ + total; p += threadsN) {
      std::int32_t parent = begin, after = end_;  // the last node whose children begin at p or before
      while (parent + 1 < after) {
        const std::int32_t middle = (parent + after) / 2;
        (pool_.first_child[middle] <= p ? parent : after) = middle;
      }
      const std::int32_t rank = p - pool_.first_child[parent];
      const float path = pool_.path[parent] + log_probs[rank];
      atomicAdd(&pool_.in_bucket[bucket_of(path)], 1);
      if (!fits) continue;
      pool_.path[p] = path;
      pool_.first_child[p] = memory::room;
      pool_.parent[p] = static_cast<std::uint16_t>(parent);
      pool_.rank[p] = static_cast<std::uint16_t>(rank);
      pool_.number[p] = 0;
      pool_.depth[p] = static_cast<std::uint8_t>(row + 1);
    }
    __syncthreads();
  }

  // Finds the last bucket that matters: the first one up to whose end there are `budget` prefixes.
  __device__ void find_last_bucket() {
    const std::int32_t n = pool_.in_bucket[thread()];
    const std::int32_t before = sum_before(n, pool_.sums).before;
    pool_.before[thread()] = before;
    if (before < budget_ && before + n >= budget_) pool_.last_bucket = thread();
    __syncthreads();
  }

  // True if prefix a is better than prefix b of the same bucket.
  __device__ bool is_before(std::int32_t a, std::int32_t b) const {
    if (pool_.path[a] != pool_.path[b]) return pool_.path[a] > pool_.path[b];
    const bool is_shorter = pool_.depth[a] < pool_.depth[b];
    while (pool_.depth[a] > pool_.depth[b])
      a = pool_.parent[a];
    while (pool_.depth[b] > pool_.depth[a])
      b = pool_.parent[b];
    return a == b ? is_shorter : a < b;
  }

  // Gives the best prefixes their numbers in the tree. Returns how many there are.
  __device__ std::int32_t number() {
    const std::int32_t last = pool_.last_bucket;
    for (std::int32_t p = 1 + thread(); p < end_; p += threadsN) {
      const std::int32_t b = bucket_of(pool_.path[p]);
      if (b <= last) pool_.by_bucket[pool_.before[b] + atomicAdd(&pool_.filled[b], 1)] = static_cast<std::uint16_t>(p);
    }
    __syncthreads();
    const std::int32_t n_sorted = pool_.before[last] + pool_.in_bucket[last];
    const std::int32_t n = n_sorted < budget_ ? n_sorted : budget_;
    for (std::int32_t k = thread(); k < n_sorted; k += threadsN) {
      const std::int32_t p = pool_.by_bucket[k], b = bucket_of(pool_.path[p]);
      std::int32_t place = pool_.before[b];
      for (std::int32_t other = place, after = other + pool_.in_bucket[b]; other < after; ++other)
        place += is_before(pool_.by_bucket[other], p) ? 1 : 0;
      if (place >= n) continue;
      pool_.number[p] = static_cast<std::uint16_t>(place + 1);
      pool_.taken[place + 1] = static_cast<std::uint16_t>(p);
    }
    __syncthreads();
    return n;
  }

  // True if prefix c is a child of p that was taken. Siblings stand side by side, and those that were taken come first.
  __device__ bool is_taken_child(std::int32_t c, std::int32_t p) const {
    return c < end_ && pool_.parent[c] == p && pool_.number[c] > 0;
  }

  memory& pool_;
  const float* log_probs_;
  std::int32_t n_rows_;
  std::int32_t n_ranks_;  // number of ranks that may matter
  std::int32_t stride_;
  std::int32_t budget_;
  std::int32_t pairs_;
  std::int32_t end_ = 1;  // end of the used part of the pool
  float best_ = 0;        // log-probability of the best prefix
  float least_ = 0;       // log-probability below which no prefix is among the best
  float scale_ = 0;       // number of buckets for each unit of log-probability
};

}  // namespace detail

}  // namespace espalier::cuda
