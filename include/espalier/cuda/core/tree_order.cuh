// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/core/tree_compile.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <cub/block/block_radix_sort.cuh>

#include "espalier/core/token.hpp"
#include "espalier/cuda/core/sum_before.cuh"

namespace espalier::cuda::detail {

//! Finds orders of one tree with the threads of one block. All threads call its functions together.
//!
//! Complexity  siblings: a radix sort, or O(n) comparisons a node if is_counted. Ancestors: O(log depth) steps, each
//!             O(n / threads). No loop runs over levels: chains and stars cost what bushy trees do
//! Pre         parent[u] < u; n <= places; a block has Threads threads; in a sort, thread t holds the elements from
//!             Items * t to Items * t + Items - 1
//! Source      pointer doubling: Wyllie, The complexity of parallel computations, 1979
template <int Threads, int Items>
class block_tree_order {
  using sort_type = cub::BlockRadixSort<std::uint32_t, Threads, Items, std::int32_t>;

 public:
  static constexpr int places = Threads * Items;
  //! True if trees are so small that siblings are found by comparing each node with every other one, not by sorting.
  static constexpr bool is_counted = places <= 128;
  using sort_memory = typename sort_type::TempStorage;

  //! The shared memory in which the orders are found; sorts also need a sort_memory.
  struct memory {
    node_id parent[places];      // [n], as the caller gives it
    std::int32_t below[places];  // [n] the caller gives the node's own weight; becomes the weight of its subtree
    std::int32_t rank[places];   // [n] the resulting rank
    std::int32_t above[places];  // [n] an ancestor of each node; in sort_siblings also the nodes in order
    std::int32_t first[places];  // [n] by parent: weight of all nodes that sort_siblings puts before its first child
    warp_sums sums;
  };

  __device__ block_tree_order(memory& m, sort_memory& sorting, int n) : m_(m), sorting_(sorting), n_(n) {}

  //! Sets rank[u] to the weight of all nodes that come before u in preorder. Children go in order of their index or, if
  //! heavy_first, the heaviest subtree first. Returns the number of bits of the largest depth, at least 1.
  //!
  //! Pre         parent and below are set; if not by each(), a barrier has been passed since. The own weight of every
  //!             inner node is inner_weight
  //! Post        a barrier has been passed
  __device__ int preorder(bool heavy_first, std::int32_t inner_weight) {
    each([&](int u) { m_.above[u] = m_.parent[u]; });
    __syncthreads();
    const int depth_bits = add_to_ancestors();
    if constexpr (is_counted) {
      add_siblings(heavy_first, inner_weight);
    } else {
      sort_siblings(heavy_first, inner_weight);
    }
    __syncthreads();
    add_ancestors();
    return depth_bits;
  }

  //! Sorts the elements of `in_order` by key_of(element), a number of at most `bits` bits; equal keys keep their order.
  //!
  //! Pre         a barrier has been passed since in_order was written
  //! Post        `element` has the thread's own elements, which begin at first_place() in the order; in_order is not
  //!             changed
  template <class KeyT>
  __device__ void sort_stably(const std::int32_t* in_order, int bits, KeyT key_of, std::int32_t (&element)[Items]) {
    std::uint32_t key[Items];
    for (int k = 0; k < Items; ++k) {
      const int place = first_place() + k;
      element[k] = place < n_ ? in_order[place] : -1;
      key[k] = place < n_ ? static_cast<std::uint32_t>(key_of(element[k])) : ~0U;
    }
    __syncthreads();  // the memory of the last sort is free now
    sort_type(sorting_).Sort(key, element, 0, bits);
  }

  static __device__ int first_place() { return static_cast<int>(threadIdx.x) * Items; }

  //! Calls f(u) for the thread's own share of the n nodes, the same nodes each time.
  template <class FunctionT>
  __device__ void each(FunctionT f) const {
    for (int u = static_cast<int>(threadIdx.x); u < n_; u += Threads)
      f(u);
  }

 private:
  // Sets rank[u] to inner_weight plus the weight of the siblings before u (0 for the root), and above[u] to the parent.
  // Compares each node with every other one.
  __device__ void add_siblings(bool heavy_first, std::int32_t inner_weight) {
    each([&](int u) {
      const node_id parent = m_.parent[u];
      const std::int32_t own = m_.below[u];
      std::int32_t before = inner_weight;
      for (int v = 1; v < n_; ++v) {
        const bool is_first = heavy_first && m_.below[v] != own ? m_.below[v] > own : v < u;
        before += m_.parent[v] == parent && is_first ? m_.below[v] : 0;
      }
      m_.rank[u] = parent < 0 ? 0 : before;
      m_.above[u] = parent;
    });
  }

  // Does what add_siblings does, by sorting.
  __device__ void sort_siblings(bool heavy_first, std::int32_t inner_weight) {
    // Sorts the nodes by parent, siblings in their order.
    const int bits = 32 - __clz(n_);
    std::uint32_t key[Items];
    node_id node[Items];
    for (int k = 0; k < Items; ++k) {
      const int u = first_place() + k;
      node[k] = u;
      key[k] = ~0U;
      if (u >= n_) continue;
      key[k] = static_cast<std::uint32_t>(m_.parent[u] + 1);
      if (heavy_first) key[k] = key[k] << bits | static_cast<std::uint32_t>(n_ - m_.below[u]);
    }
    sort_type(sorting_).Sort(key, node, 0, heavy_first ? 2 * bits : bits);
    // The weight of a node's earlier siblings is the weight of all nodes before it, less that of all nodes before its
    // first sibling.
    std::int32_t before[Items], own = 0;
    for (int k = 0; k < Items; ++k) {
      before[k] = own;
      own += node[k] < n_ ? m_.below[node[k]] : 0;
    }
    const std::int32_t of_threads_before = sum_before(own, m_.sums).before;
    for (int k = 0; k < Items; ++k)
      before[k] += of_threads_before;
    std::int32_t* const in_order = m_.above;
    for (int k = 0; k < Items; ++k)
      in_order[first_place() + k] = node[k];
    __syncthreads();
    for (int k = 0; k < Items; ++k) {
      const int place = first_place() + k;
      if (place >= n_ || node[k] == root_node) continue;
      const node_id parent = m_.parent[node[k]];
      if (m_.parent[in_order[place - 1]] != parent) m_.first[parent] = before[k];
      m_.rank[node[k]] = before[k];
    }
    __syncthreads();
    each([&](int u) {
      const node_id parent = m_.parent[u];
      m_.rank[u] = parent < 0 ? 0 : m_.rank[u] - m_.first[parent] + inner_weight;
      m_.above[u] = parent;
    });
  }

  // Sets below[u] to the weight of the subtree of u, by pointer doubling: after step k, `above` of every node is its
  // ancestor 2^k levels up, and `below` is the weight of the node and its descendants less than 2^k levels down.
  // Returns the number of steps; all depths are less than 2^steps.
  __device__ int add_to_ancestors() {
    int steps = 0;
    for (bool more = true; more; ++steps) {
      node_id at[Items], next[Items];
      std::int32_t own[Items];
      for (int k = 0; k < Items; ++k) {
        const int u = static_cast<int>(threadIdx.x) + k * Threads;
        at[k] = u < n_ ? m_.above[u] : no_node;
        if (at[k] < 0) continue;
        own[k] = m_.below[u];
        next[k] = m_.above[at[k]];
      }
      __syncthreads();
      more = false;
      for (int k = 0; k < Items; ++k) {
        if (at[k] < 0) continue;
        atomicAdd(&m_.below[at[k]], own[k]);
        m_.above[static_cast<int>(threadIdx.x) + k * Threads] = next[k];
        more = more || next[k] >= 0;
      }
      more = __syncthreads_or(more ? 1 : 0) != 0;
    }
    return steps;
  }

  // Replaces rank[u] by the sum of the ranks along the path from the root to u.
  __device__ void add_ancestors() {
    for (bool more = true; more;) {
      node_id at[Items], next[Items];
      std::int32_t sum[Items];
      for (int k = 0; k < Items; ++k) {
        const int u = static_cast<int>(threadIdx.x) + k * Threads;
        at[k] = u < n_ ? m_.above[u] : no_node;
        if (at[k] < 0) continue;
        sum[k] = m_.rank[at[k]];
        next[k] = m_.above[at[k]];
      }
      __syncthreads();
      more = false;
      for (int k = 0; k < Items; ++k) {
        if (at[k] < 0) continue;
        const int u = static_cast<int>(threadIdx.x) + k * Threads;
        m_.rank[u] += sum[k];
        m_.above[u] = next[k];
        more = more || next[k] >= 0;
      }
      more = __syncthreads_or(more ? 1 : 0) != 0;
    }
  }

  memory& m_;
  sort_memory& sorting_;
  int n_;
};

}  // namespace espalier::cuda::detail
