// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <vector>

#include "emulator/cub_warp.hpp"

// CUB's sorts. One thread sorts for all. Between the steps are the barriers that CUB would have, and none at the end.

namespace emulator::detail {

template <std::size_t Bytes>
using bits_of_size = std::conditional_t<
    Bytes == 1, std::uint8_t,
    std::conditional_t<Bytes == 2, std::uint16_t, std::conditional_t<Bytes == 4, std::uint32_t, std::uint64_t>>>;

//! The key's bits, changed so that they have the order of the keys; -0 counts as 0.
template <class KeyT>
std::uint64_t radix_bits(KeyT key) {
  using bits_t = bits_of_size<sizeof(KeyT)>;
  bits_t bits;
  std::memcpy(&bits, &key, sizeof(KeyT));
  constexpr auto top = static_cast<bits_t>(bits_t{1} << (8 * sizeof(KeyT) - 1));
  if constexpr (!std::is_integral_v<KeyT>) {
    if (bits == top) bits = 0;
    return static_cast<bits_t>((bits & top) != 0 ? ~bits : bits | top);
  } else if constexpr (std::is_signed_v<KeyT>) {
    return static_cast<bits_t>(bits ^ top);
  } else {
    return bits;
  }
}

//! Sorts the items of N threads through memory that they share; each thread calls sync() between the steps.
template <class KeyT, class ValueT, int Threads, int Items>
struct sorter {
  static constexpr int n = Threads * Items;
  static constexpr bool has_values = !std::is_same_v<ValueT, cub::NullType>;
  union storage {
    KeyT keys[n];
    ValueT values[n];
    int ranks[n];
  };

  storage& room;
  int thread;

  //! Sorts by calling sort(order, keys), which orders the item numbers. `striped` leaves item i with thread i %
  //! Threads.
  template <class SyncT, class SortT>
  void run(KeyT (&keys)[Items], ValueT (&values)[Items], bool striped, SyncT sync, SortT sort) {
    int ranks[Items];
    for (int i = 0; i < Items; ++i)
      put(room.keys, thread * Items + i, keys[i]);
    sync();
    if (thread == 0) {
      std::vector<KeyT> all(n);
      std::memcpy(static_cast<void*>(all.data()), room.keys, sizeof(KeyT) * n);
      std::vector<int> order(n);
      std::iota(order.begin(), order.end(), 0);
      sort(order, all);
      for (int i = 0; i < n; ++i)
        room.ranks[order[static_cast<std::size_t>(i)]] = i;
    }
    sync();
    for (int i = 0; i < Items; ++i)
      ranks[i] = room.ranks[thread * Items + i];
    sync();
    exchange(room.keys, keys, ranks, striped, sync);
    if constexpr (has_values) {
      sync();
      exchange(room.values, values, ranks, striped, sync);
    }
  }

 private:
  template <class T>
  static void put(T* all, int i, const T& item) {
    std::memcpy(static_cast<void*>(all + i), &item, sizeof(T));
  }
  template <class T, class SyncT>
  void exchange(T* all, T (&items)[Items], const int (&ranks)[Items], bool striped, SyncT sync) {
    for (int i = 0; i < Items; ++i)
      put(all, ranks[i], items[i]);
    sync();
    for (int i = 0; i < Items; ++i)
      items[i] = all[striped ? i * Threads + thread : thread * Items + i];
  }
};

}  // namespace emulator::detail

namespace emulator::detail::cub {

template <class KeyT, int X, int ItemsPerThread, class ValueT = NullType, int RadixBits = 4, bool Memoize = true,
          int ScanAlgorithm = 0, int SharedMemoryConfig = 0, int Y = 1, int Z = 1>
class BlockRadixSort {
  using sorter_t = sorter<KeyT, ValueT, X * Y * Z, ItemsPerThread>;
  using keys_t = KeyT[ItemsPerThread];
  using values_t = ValueT[ItemsPerThread];
  static constexpr int all_bits = static_cast<int>(8 * sizeof(KeyT));

 public:
  using TempStorage = Uninitialized<typename sorter_t::storage>;
  explicit BlockRadixSort(TempStorage& storage) : storage_(storage.Alias()) {}

  // clang-format off
  void Sort(keys_t& keys, int begin = 0, int end = all_bits) { run(keys, none_, begin, end, false, false); }
  void Sort(keys_t& keys, values_t& values, int begin = 0, int end = all_bits) { run(keys, values, begin, end, false, false); }
  void SortDescending(keys_t& keys, int begin = 0, int end = all_bits) { run(keys, none_, begin, end, true, false); }
  void SortDescending(keys_t& keys, values_t& values, int begin = 0, int end = all_bits) { run(keys, values, begin, end, true, false); }
  void SortBlockedToStriped(keys_t& keys, int begin = 0, int end = all_bits) { run(keys, none_, begin, end, false, true); }
  void SortBlockedToStriped(keys_t& keys, values_t& values, int begin = 0, int end = all_bits) { run(keys, values, begin, end, false, true); }
  void SortDescendingBlockedToStriped(keys_t& keys, int begin = 0, int end = all_bits) { run(keys, none_, begin, end, true, true); }
  void SortDescendingBlockedToStriped(keys_t& keys, values_t& values, int begin = 0, int end = all_bits) { run(keys, values, begin, end, true, true); }
  // clang-format on

 private:
  template <class PayloadT>
  void run(keys_t& keys, PayloadT& values, int begin, int end, bool descending, bool striped) {
    sorter_t s{storage_, static_cast<int>(self().rank)};
    s.run(keys, values, striped, __syncthreads, [=](std::vector<int>& order, const std::vector<KeyT>& all) {
      const std::uint64_t mask = end - begin >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << (end - begin)) - 1;
      std::vector<std::uint64_t> digits;
      for (const KeyT& key : all) {
        const std::uint64_t bits = radix_bits(key) >> begin;
        digits.push_back((descending ? ~bits : bits) & mask);
      }
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return digits[static_cast<std::size_t>(a)] < digits[static_cast<std::size_t>(b)];
      });
    });
  }

  typename sorter_t::storage& storage_;
  values_t none_;
};

//! The part that BlockMergeSort and WarpMergeSort share.
template <class KeyT, int Threads, int ItemsPerThread, class ValueT, bool InWarp>
class EmulatedMergeSort {
  using sorter_t = sorter<KeyT, ValueT, Threads, ItemsPerThread>;
  using keys_t = KeyT[ItemsPerThread];
  using values_t = ValueT[ItemsPerThread];

 public:
  using TempStorage = Uninitialized<typename sorter_t::storage>;
  explicit EmulatedMergeSort(TempStorage& storage) : storage_(storage.Alias()) {}

  // clang-format off
  template <class LessT> void Sort(keys_t& keys, LessT less) { run(keys, none_, less); }
  template <class LessT> void Sort(keys_t& keys, values_t& values, LessT less) { run(keys, values, less); }
  template <class LessT> void Sort(keys_t& keys, LessT less, int valid, KeyT beyond) { fill(keys, valid, beyond); run(keys, none_, less); }
  template <class LessT> void Sort(keys_t& keys, values_t& values, LessT less, int valid, KeyT beyond) { fill(keys, valid, beyond); run(keys, values, less); }
  template <class... ArgsT> void StableSort(ArgsT&&... args) { Sort(std::forward<ArgsT>(args)...); }
  // clang-format on

 private:
  static int rank() { return static_cast<int>(self().rank) % Threads; }

  static void fill(keys_t& keys, int valid, const KeyT& beyond) {
    for (int i = 0; i < ItemsPerThread; ++i) {
      if (rank() * ItemsPerThread + i >= valid) keys[i] = beyond;
    }
  }

  template <class LessT>
  void run(keys_t& keys, values_t& values, LessT less) {
    const auto sync = [] {
      if constexpr (InWarp) {
        __syncwarp(part_mask(Threads));
      } else {
        __syncthreads();
      }
    };
    sorter_t s{storage_, rank()};
    s.run(keys, values, false, sync, [less](std::vector<int>& order, const std::vector<KeyT>& all) {
      std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
        return less(all[static_cast<std::size_t>(a)], all[static_cast<std::size_t>(b)]);
      });
    });
  }

  typename sorter_t::storage& storage_;
  values_t none_;
};

template <class KeyT, int X, int ItemsPerThread, class ValueT = NullType, int Y = 1, int Z = 1>
class BlockMergeSort : public EmulatedMergeSort<KeyT, X * Y * Z, ItemsPerThread, ValueT, false> {
  using EmulatedMergeSort<KeyT, X * Y * Z, ItemsPerThread, ValueT, false>::EmulatedMergeSort;
};

template <class KeyT, int ItemsPerThread, int LogicalWarpThreads = 32, class ValueT = NullType, int = 0>
class WarpMergeSort : public EmulatedMergeSort<KeyT, LogicalWarpThreads, ItemsPerThread, ValueT, true> {
  using EmulatedMergeSort<KeyT, LogicalWarpThreads, ItemsPerThread, ValueT, true>::EmulatedMergeSort;
};

}  // namespace emulator::detail::cub
