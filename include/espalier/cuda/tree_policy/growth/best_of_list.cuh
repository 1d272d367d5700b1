// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/eagle2.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/sum_before.cuh"

namespace espalier::cuda::detail {

// Returns a number, 0 or larger, as a key: a larger number has a larger key. The key of 0 is 0.
__device__ inline std::uint64_t key_of(double number) {
  return __builtin_bit_cast(std::uint64_t, number);
}
__device__ inline double number_of_key(std::uint64_t key) {
  return __builtin_bit_cast(double, key);
}

// A search for the best entries of a list by keys of 64 bits: an entry with a larger key is better, and of entries with
// equal keys the earlier one. A key of 0 stands for no entry. Used by a block of threadsN threads, 256 or more, which
// has a thread for each entry that is found.
//
// Complexity  at most eight looks at each key of the list, and one more to collect the best
template <std::int32_t threadsN>
class best_of_list {
 public:
  static constexpr std::int32_t most = threadsN;

  struct memory {
    std::uint64_t key[most];   // keys of the best entries
    std::int32_t place[most];  // their indices in the list
    std::int32_t sibling[most];
    warp_sums sums;
    std::int32_t in_bin[256];
    std::int32_t bin, before;
  };

  __device__ explicit best_of_list(memory& shared) : shared_(shared) {}

  // Finds the k best of n entries, and keeps them in the order of the list. key(i) is the key of entry i. Returns how
  // many were found: fewer than k if there are fewer. Called by all threads; ends with a barrier if k is above 0.
  //
  // Pre         k <= most; a barrier since the keys were written
  template <class KeyT>
  __device__ std::int32_t find(std::int32_t n, std::int32_t k, const KeyT& key) {
    if (k <= 0) return 0;
    // The leading bits of the k-th best key, found 8 bits at a time, and how many entries with these leading bits are
    // taken.
    std::uint64_t bits = 0, mask = 0;
    std::int32_t left = k;
    for (int shift = 56; shift >= 0; shift -= 8) {
      if (thread() < 256) shared_.in_bin[thread()] = 0;
      __syncthreads();
      for (std::int32_t i = thread(); i < n; i += threadsN) {
        const std::uint64_t x = key(i);
        if (x != 0 && (x & mask) == bits) atomicAdd(&shared_.in_bin[x >> shift & 255], 1);
      }
      __syncthreads();
      const std::int32_t own = thread() < 256 ? shared_.in_bin[255 - thread()] : 0;
      const running_sum sum = sum_before(own, shared_.sums);
      if (sum.all <= left) break;
      if (sum.before < left && sum.before + own >= left) shared_.bin = 255 - thread(), shared_.before = sum.before;
      __syncthreads();
      bits |= static_cast<std::uint64_t>(shared_.bin) << shift;
      mask |= std::uint64_t{255} << shift;
      left -= shared_.before;
    }
    return collect(n, key, bits, mask, left);
  }

  // Sorts the n entries that were found, the best first. Called by all threads; ends with a barrier.
  __device__ void sort(std::int32_t n) {
    std::int32_t size = 1;
    while (size < n)
      size *= 2;
    if (thread() >= n && thread() < size) shared_.key[thread()] = 0, shared_.place[thread()] = INT32_MAX;
    __syncthreads();
    for (std::int32_t length = 2; length <= size; length *= 2) {
      for (std::int32_t half = length / 2; half > 0; half /= 2) {
        const std::int32_t i = thread(), j = i ^ half;
        if (j > i && j < size && precedes(j, i) == ((i & length) == 0)) swap(i, j);
        __syncthreads();
      }
    }
  }

  __device__ std::uint64_t key(std::int32_t i) const { return shared_.key[i]; }
  __device__ std::int32_t place(std::int32_t i) const { return shared_.place[i]; }

  // The place of a node among its siblings: whether it is the first child of its parent, and the parent's next child,
  // -1 if there is none.
  struct siblings {
    bool is_first;
    std::int32_t next;
  };
  // Returns, in thread i, the siblings of node i of n nodes in order; each thread gives the parent of its node. Called
  // by all threads. Overwrites the entries that find() has found. Pre: a barrier since these were read
  __device__ siblings siblings_of(std::int32_t n, node_id parent) {
    const std::int32_t i = thread();
    if (i < n) shared_.key[i] = ~static_cast<std::uint64_t>(parent), shared_.place[i] = i;
    sort(n);
    if (i < n) {
      const std::uint64_t own = shared_.key[i];
      const bool is_first = i == 0 || shared_.key[i - 1] != own;
      const std::int32_t next = i + 1 < n && shared_.key[i + 1] == own ? shared_.place[i + 1] : -1;
      shared_.sibling[shared_.place[i]] = 2 * (next + 1) + (is_first ? 1 : 0);
    }
    __syncthreads();
    if (i >= n) return {false, -1};
    return {shared_.sibling[i] % 2 != 0, shared_.sibling[i] / 2 - 1};
  }

 private:
  __device__ static std::int32_t thread() { return static_cast<std::int32_t>(threadIdx.x); }

  template <class KeyT>
  __device__ std::int32_t collect(std::int32_t n, const KeyT& key, std::uint64_t bits, std::uint64_t mask,
                                  std::int32_t left) {
    std::int32_t n_above = 0, n_equal = 0;  // entries counted so far
    for (std::int32_t first = 0; first < n; first += threadsN) {
      __syncthreads();
      const std::int32_t i = first + thread();
      const std::uint64_t x = i < n ? key(i) : 0;
      const bool above = x != 0 && (x & mask) > bits, equal = x != 0 && (x & mask) == bits;
      // One sum counts both: entries above in the upper half of the word, equal ones in the lower half.
      const running_sum sum = sum_before((above ? 1 << 16 : 0) + (equal ? 1 : 0), shared_.sums);
      const std::int32_t above_before = n_above + (sum.before >> 16), equal_before = n_equal + (sum.before & 0xFFFF);
      if (above || (equal && equal_before < left)) {
        const std::int32_t at = above_before + (equal_before < left ? equal_before : left);
        shared_.key[at] = x;
        shared_.place[at] = i;
      }
      n_above += sum.all >> 16;
      n_equal += sum.all & 0xFFFF;
    }
    __syncthreads();
    return n_above + (n_equal < left ? n_equal : left);
  }

  __device__ bool precedes(std::int32_t a, std::int32_t b) const {
    if (shared_.key[a] != shared_.key[b]) return shared_.key[a] > shared_.key[b];
    return shared_.place[a] < shared_.place[b];
  }

  __device__ void swap(std::int32_t i, std::int32_t j) {
    const std::uint64_t key = shared_.key[i];
    const std::int32_t place = shared_.place[i];
    shared_.key[i] = shared_.key[j], shared_.place[i] = shared_.place[j];
    shared_.key[j] = key, shared_.place[j] = place;
  }

  memory& shared_;
};

}  // namespace espalier::cuda::detail
