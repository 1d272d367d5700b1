// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include <cub/block/block_radix_sort.cuh>

#include "espalier/core/token.hpp"
#include "espalier/cuda/core/sum_before.cuh"

namespace espalier::cuda::detail {

//! Orders of one tree, found by the threads of one block together. All of its functions are called by every thread.
//!
//! Complexity  O(log n) radix passes and O(log depth) steps of O(n / threads) each: no step that goes from node to node
//!             or from level to level, so that stars and chains cost what bushy trees cost
//! Pre         parent[u] < u; n <= places; a block has Threads threads, of which t holds places t * Items to t * Items
//!             + Items - 1
//! Source      pointer doubling: Wyllie, The complexity of parallel computations, 1979
template <int Threads, int Items>
class block_tree_order {
  using sort_type = cub::BlockRadixSort<std::uint32_t, Threads, Items, std::int32_t>;

 public:
  static constexpr int places = Threads * Items;
  //! Whether nodes are so few that it is quicker to look at each of them for each than to sort them.
  static constexpr bool is_counted = places <= 128;
  using sort_memory = typename sort_type::TempStorage;

  //! In shared memory, besides what sorts need.
  struct memory {
    node_id parent[places];      // [n], as given
    std::int32_t below[places];  // [n] weight of the subtree; the node's own weight at first
    std::int32_t rank[places];   // [n] the result
    std::int32_t above[places];
    std::int32_t first[places];
    warp_sums sums;
  };

  __device__ block_tree_order(memory& m, sort_memory& sorting, int n) : m_(m), sorting_(sorting), n_(n) {}

  //! rank[u] = the weight of all nodes that come before u in preorder. Children go by index, or heavier subtrees first.
  //! Returns how many bits the largest depth has.
  //!
  //! Pre         parent and below are there (no barrier needed since); all inner nodes weigh inner_weight
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

  //! Sorts what stands in `in_order` by keys of so many bits; equal ones keep their order.
  //!
  //! Pre         a barrier has been passed since in_order was written
  //! Post        the thread's own elements, at place first_place() + k; in_order is not changed
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

  //! Calls f(u) for the thread's own share of the n nodes: the same each time.
  template <class FunctionT>
  __device__ void each(FunctionT f) const {
    for (int u = static_cast<int>(threadIdx.x); u < n_; u += Threads)
      f(u);
  }

 private:
  // rank[u] becomes inner_weight and the weight of the siblings before u; above[u] the parent.
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

  // The same, without looking at each node for each.
  __device__ void sort_siblings(bool heavy_first, std::int32_t inner_weight) {
    // Siblings side by side, in their order.
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
    // The weight of earlier siblings: that of all nodes before, less that of all before the first sibling.
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

  // After step k every node knows its ancestor 2^k above, and `below` counts descendants less than 2^k below. Returns
  // the number of steps: all depths are less than 2 to the power of it.
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

  // rank[u] becomes its sum along the path from the root to u.
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
