// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <functional>
#include <type_traits>
#include <utility>

#include "emulator/cub_warp.hpp"

// CUB's block collectives. As with CUB, the caller puts a barrier between two uses of one TempStorage.

namespace emulator::detail::cub {

enum BlockReduceAlgorithm { BLOCK_REDUCE_RAKING_COMMUTATIVE_ONLY, BLOCK_REDUCE_RAKING, BLOCK_REDUCE_WARP_REDUCTIONS };
enum BlockScanAlgorithm { BLOCK_SCAN_RAKING, BLOCK_SCAN_RAKING_MEMOIZE, BLOCK_SCAN_WARP_SCANS };

template <class T, int X, BlockReduceAlgorithm = BLOCK_REDUCE_WARP_REDUCTIONS, int Y = 1, int Z = 1>
class BlockReduce {
  static constexpr int n_threads = X * Y * Z, n_warps = (n_threads + 31) / 32;
  struct partials {
    T of_warp[n_warps];
  };

 public:
  using TempStorage = Uninitialized<partials>;
  explicit BlockReduce(TempStorage& storage) : storage_(storage.Alias()) {}

  //! The result is thread 0's alone, as with every function here.
  T Sum(T input) { return Reduce(input, ::cuda::std::plus<>{}, n_threads); }
  T Sum(T input, int num_valid) { return Reduce(input, ::cuda::std::plus<>{}, num_valid); }
  template <int Items>
  T Sum(T (&inputs)[Items]) {
    return Reduce(inputs, ::cuda::std::plus<>{});
  }
  template <class OpT>
  T Reduce(T input, OpT op) {
    return Reduce(input, op, n_threads);
  }
  template <int Items, class OpT>
  T Reduce(T (&inputs)[Items], OpT op) {
    T all = inputs[0];
    for (int i = 1; i < Items; ++i)
      all = op(all, inputs[i]);
    return Reduce(all, op, n_threads);
  }
  template <class OpT>
  T Reduce(T input, OpT op, int num_valid) {
    const auto rank = static_cast<int>(self().rank);
    T sum = reduce_lanes(32, input, op, num_valid - rank / 32 * 32);
    if (rank % 32 == 0) storage_.of_warp[rank / 32] = sum;
    __syncthreads();
    for (int w = 1; rank == 0 && w < n_warps && w * 32 < num_valid; ++w)
      sum = op(sum, storage_.of_warp[w]);
    return sum;
  }

 private:
  partials& storage_;
};

template <class T, int X, BlockScanAlgorithm = BLOCK_SCAN_RAKING, int Y = 1, int Z = 1>
class BlockScan {
  static constexpr int n_threads = X * Y * Z, n_warps = (n_threads + 31) / 32;
  struct partials {
    T of_warp[n_warps];
    T prefix;
  };
  using plus = ::cuda::std::plus<>;

 public:
  using TempStorage = Uninitialized<partials>;
  explicit BlockScan(TempStorage& storage) : storage_(storage.Alias()) {}

  // Without an initial value the exclusive output of thread 0 is not defined. `last` is the aggregate that is written,
  // or the callback that is given it and returns the prefix.

  void ExclusiveSum(T input, T& output) { ExclusiveScan(input, output, T{}, plus{}); }
  template <class LastT>
  void ExclusiveSum(T input, T& output, LastT& last) {
    if constexpr (std::is_same_v<LastT, T>) {
      ExclusiveScan(input, output, T{}, plus{}, last);
    } else {
      ExclusiveScan(input, output, plus{}, last);
    }
  }
  template <int N>
  void ExclusiveSum(T (&input)[N], T (&output)[N]) {
    ExclusiveScan(input, output, T{}, plus{});
  }
  template <int N, class LastT>
  void ExclusiveSum(T (&input)[N], T (&output)[N], LastT& last) {
    if constexpr (std::is_same_v<LastT, T>) {
      ExclusiveScan(input, output, T{}, plus{}, last);
    } else {
      ExclusiveScan(input, output, plus{}, last);
    }
  }

  void InclusiveSum(T input, T& output) { InclusiveScan(input, output, plus{}); }
  template <class LastT>
  void InclusiveSum(T input, T& output, LastT& last) {
    InclusiveScan(input, output, plus{}, last);
  }
  template <int N>
  void InclusiveSum(T (&input)[N], T (&output)[N]) {
    InclusiveScan(input, output, plus{});
  }
  template <int N, class LastT>
  void InclusiveSum(T (&input)[N], T (&output)[N], LastT& last) {
    InclusiveScan(input, output, plus{}, last);
  }

  //! rest: [initial,] op [, last].
  template <class... RestT>
  void ExclusiveScan(T input, T& output, RestT&&... rest) {
    T in[1] = {input}, out[1];
    ExclusiveScan(in, out, std::forward<RestT>(rest)...);
    output = out[0];
  }
  template <int N, class... RestT>
  void ExclusiveScan(T (&input)[N], T (&output)[N], RestT&&... rest) {
    scan<false>(input, output, std::forward<RestT>(rest)...);
  }
  template <class... RestT>
  void InclusiveScan(T input, T& output, RestT&&... rest) {
    T in[1] = {input}, out[1];
    InclusiveScan(in, out, std::forward<RestT>(rest)...);
    output = out[0];
  }
  template <int N, class... RestT>
  void InclusiveScan(T (&input)[N], T (&output)[N], RestT&&... rest) {
    scan<true>(input, output, std::forward<RestT>(rest)...);
  }

 private:
  template <bool Inclusive, int N, class FirstT, class... RestT>
  void scan(T (&input)[N], T (&output)[N], FirstT&& first, RestT&&... rest) {
    if constexpr (std::is_invocable_v<FirstT&, T, T>) {
      scan_from<Inclusive>(input, output, nullptr, first, rest...);
    } else {
      const T initial = static_cast<T>(first);
      scan_from<Inclusive>(input, output, &initial, rest...);
    }
  }
  template <bool Inclusive, int N, class OpT>
  void scan_from(T (&input)[N], T (&output)[N], const T* initial, OpT op) {
    T aggregate;
    scan_from<Inclusive>(input, output, initial, op, aggregate);
  }
  template <bool Inclusive, int N, class OpT, class LastT>
  void scan_from(T (&input)[N], T (&output)[N], const T* initial, OpT op, LastT& last) {
    T own = input[0];
    for (int i = 1; i < N; ++i)
      own = op(own, input[i]);

    const auto rank = static_cast<int>(self().rank);
    const T inclusive = scan_lanes(32, own, op);
    T before = lane_before(32, inclusive);
    if (rank % 32 == 31 || rank == n_threads - 1) storage_.of_warp[rank / 32] = inclusive;
    __syncthreads();
    T aggregate = storage_.of_warp[0];
    for (int w = 1; w <= n_warps; ++w) {
      if (w == rank / 32) before = rank % 32 == 0 ? aggregate : op(aggregate, before);
      if (w < n_warps) aggregate = op(aggregate, storage_.of_warp[w]);
    }

    bool first = rank == 0;
    T start{};
    if constexpr (std::is_same_v<LastT, T>) {
      last = aggregate;
      if (initial != nullptr) start = *initial;
    } else {
      if (rank < 32) {
        const T prefix = last(aggregate);
        if (rank == 0) storage_.prefix = prefix;
      }
      __syncthreads();
      start = storage_.prefix;
      initial = &start;
    }
    if (initial != nullptr) before = first ? start : op(start, before), first = false;
    for (int i = 0; i < N; ++i) {
      const T sum = first ? input[i] : op(before, input[i]);
      output[i] = Inclusive ? sum : before;
      before = sum, first = false;
    }
  }

  partials& storage_;
};

}  // namespace emulator::detail::cub
