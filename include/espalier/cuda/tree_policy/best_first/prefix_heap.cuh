// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cfloat>
#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/cuda/tree_policy/best_first/prefix_nodes.cuh"
#include "espalier/tree_policy/best_first/marginal_heap.hpp"

namespace espalier::cuda::detail {

// The most probable prefixes by a priority queue of one warp: espalier::marginal_heap's, in its order. Every node taken
// has one entry, its first child that was not taken; entries are the leaves of a tree of arity 32 with two levels,
// whose upper one is a register of each lane: the least entry of its group. To take one and to put two back is two
// reductions over the warp and no loop.
//
// A step is a chain of about two reductions, two votes, three reads of shared memory (the group, the node, a row) and
// an addition. Where entries are equal, the one that is first in lexicographic order is looked for among all of them.
class prefix_heap {
 public:
  static constexpr std::int32_t n_leaves = max_prefixes;

  __device__ prefix_heap(std::uint32_t* leaves, prefix_nodes nodes) : leaves_(leaves), nodes_(nodes) {}

  // Takes the `budget` best prefixes, or all that have a probability, and returns how many. All lanes of one warp.
  //
  // Shapes      leaves [n_leaves]; nodes [budget + 1]; log_probs [n_rows][n_ranks], each row falling
  // Pre         log_probs <= 0; n_rows, n_ranks > 0; budget <= max_prefixes
  __device__ std::int32_t take(const float* log_probs, std::int32_t n_rows, std::int32_t n_ranks, std::int32_t budget) {
    const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x % 32U);
    for (std::int32_t i = lane; i < n_leaves; i += 32)
      leaves_[i] = i == root_node && budget > 0 ? entry(log_probs[0]) : none;
    if (lane == 0) nodes_.node[root_node] = {};
    least_ = lane == 0 && budget > 0 ? entry(log_probs[0]) : none;
    __syncwarp();
    std::int32_t n = 0;
    for (std::uint32_t best = __reduce_min_sync(all, least_); best != none; best = __reduce_min_sync(all, least_)) {
      const std::int32_t u = node_of(best, lane);
      const prefix_node parent = nodes_.node[u];
      const float* row = log_probs + parent.depth * n_ranks;  // at most 64 * 1024
      const std::int32_t rank = parent.n_children;
      const float path = __uint_as_float(best | 0x80000000U);
      ++n;
      const std::uint32_t sibling =
          n < budget && rank + 1 < n_ranks ? entry(parent.path_log_prob + row[rank + 1]) : none;
      const std::uint32_t child = n < budget && parent.depth + 1 < n_rows ? entry(path + row[n_ranks]) : none;
      __syncwarp();  // all have read
      if (lane == 0) {
        nodes_.link(u, parent, n);
        nodes_.node[n] = {path == 0 ? 0.0F : path,
                          static_cast<std::int16_t>(parent.depth + 1),
                          0,
                          0,
                          static_cast<std::int16_t>(u),
                          static_cast<std::int16_t>(rank)};
      }
      if (n == budget) break;
      replace(u, sibling, n, child, lane);
    }
    __syncwarp();
    return n;
  }

 private:
  static constexpr unsigned all = 0xFFFFFFFFU;
  static constexpr std::uint32_t none = 0xFFFFFFFFU;

  // Smaller is better: the magnitude of a sum that is not positive, read as an integer.
  __device__ static std::uint32_t entry(float path_log_prob) {
    return path_log_prob >= -FLT_MAX ? __float_as_uint(path_log_prob) & 0x7FFFFFFFU : none;
  }

  // The node whose entry is `best`; of several, the one whose next child is first in lexicographic order.
  __device__ std::int32_t node_of(std::uint32_t best, std::int32_t lane) const {
    const unsigned groups = __ballot_sync(all, least_ == best);
    const std::int32_t group = __ffs(static_cast<int>(groups)) - 1;
    const unsigned leaves = __ballot_sync(all, leaves_[group * 32 + lane] == best);
    if ((groups & (groups - 1)) == 0 && (leaves & (leaves - 1)) == 0)
      return group * 32 + __ffs(static_cast<int>(leaves)) - 1;
    return first_of_equals(best, groups, lane);
  }

  __device__ std::int32_t first_of_equals(std::uint32_t best, unsigned groups, std::int32_t lane) const {
    std::int32_t first = no_node;
    for (; groups != 0; groups &= groups - 1) {
      const std::int32_t u = (__ffs(static_cast<int>(groups)) - 1) * 32 + lane;
      if (leaves_[u] == best && (first == no_node || is_before(u, first))) first = u;
    }
    for (int distance = 16; distance > 0; distance /= 2) {
      const std::int32_t other = __shfl_xor_sync(all, first, distance);
      if (other != no_node && other != first && (first == no_node || is_before(other, first))) first = other;
    }
    return first;
  }

  // Compares the next children of two nodes.
  __device__ bool is_before(std::int32_t a, std::int32_t b) const {
    return espalier::detail::precedes(a, nodes_.node[a].n_children, b, nodes_.node[b].n_children,
                                      [this](std::int32_t u) -> const prefix_node& { return nodes_.node[u]; });
  }

  // The entries of u and of the new node n.
  __device__ void replace(std::int32_t u, std::uint32_t sibling, std::int32_t n, std::uint32_t child,
                          std::int32_t lane) {
    const std::int32_t group = u / 32;
    std::uint32_t leaf = leaves_[group * 32 + lane];
    if (lane == u % 32) leaf = sibling;
    if (n / 32 == group && lane == n % 32) leaf = child;
    const std::uint32_t least = __reduce_min_sync(all, leaf);
    if (lane == group) least_ = least;
    if (lane == n / 32 && lane != group && child < least_) least_ = child;
    if (lane == 0) leaves_[u] = sibling, leaves_[n] = child;
    __syncwarp();
  }

  std::uint32_t* leaves_;
  prefix_nodes nodes_;
  std::uint32_t least_ = none;  // of the group that has the lane's number
};

}  // namespace espalier::cuda::detail
