// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <functional>

#include "emulator/device.hpp"
#include "emulator/functors.hpp"

// CUB's warp collectives. Values are combined in the order in which CUB's shuffles combine them, so that sums of floats
// come out the same.

namespace emulator::detail::cub {

struct NullType {};

template <class T>
struct Uninitialized {
  alignas(T) unsigned char bytes[sizeof(T)];
  T& Alias() { return *reinterpret_cast<T*>(bytes); }
};

}  // namespace emulator::detail::cub

namespace emulator::detail {

template <class T>
struct collective_item {
  T value;
  T result;
};

//! The lanes of the caller's part of a warp, when warps are cut into parts of `size` lanes.
inline unsigned part_mask(int size) {
  const unsigned first = my_lane() / static_cast<unsigned>(size) * static_cast<unsigned>(size);
  return (0xFFFFFFFFU >> (32 - size)) << first;
}

//! Calls work(values, n) once for the first n lanes of the part; then lane i gets values[i].
template <class T, class WorkT>
T together(const char* name, int size, T value, WorkT work) {
  collective_item<T> item{value, value};
  const unsigned first = my_lane() / static_cast<unsigned>(size) * static_cast<unsigned>(size);
  meet(part_mask(size), name, item, [first, size, work](collective_item<T>** lanes) {
    T values[32];
    int n = 0;
    for (; n < size && lanes[first + static_cast<unsigned>(n)] != nullptr; ++n) {
      values[n] = lanes[first + static_cast<unsigned>(n)]->value;
    }
    work(values, n);
    for (int i = 0; i < n; ++i)
      lanes[first + static_cast<unsigned>(i)]->result = values[i];
  });
  return item.result;
}

//! The sum of the first `valid` lanes, in the part's first lane; the other lanes get intermediate results.
template <class T, class OpT>
T reduce_lanes(int size, T value, OpT op, int valid) {
  return together("WarpReduce", size, value, [op, valid](T* values, int n) {
    const int last = (valid < n ? valid : n) - 1;
    for (int offset = 1; offset < 32; offset *= 2) {
      for (int i = 0; i + offset <= last; ++i)
        values[i] = op(values[i], values[i + offset]);
    }
  });
}

//! Inclusive sums.
template <class T, class OpT>
T scan_lanes(int size, T value, OpT op) {
  return together("WarpScan", size, value, [op](T* values, int n) {
    for (int offset = 1; offset < 32; offset *= 2) {
      for (int i = n - 1; i >= offset; --i)
        values[i] = op(values[i - offset], values[i]);
    }
  });
}

//! Every lane gets lane `source` of its part.
template <class T>
T copy_lane(int size, T value, int source) {
  return together("WarpScan", size, value, [source](T* values, int n) {
    const T one = values[source];
    for (int i = 0; i < n; ++i)
      values[i] = one;
  });
}

//! Every lane gets the value of the lane before it; the first keeps its own.
template <class T>
T lane_before(int size, T value) {
  return together("WarpScan", size, value, [](T* values, int n) {
    for (int i = n - 1; i > 0; --i)
      values[i] = values[i - 1];
  });
}

}  // namespace emulator::detail

namespace emulator::detail::cub {

template <class T, int LogicalWarpThreads = 32>
class WarpReduce {
 public:
  struct TempStorage {};
  explicit WarpReduce(TempStorage&) {}

  T Sum(T input) { return Reduce(input, ::cuda::std::plus<>{}); }
  T Sum(T input, int valid_items) { return Reduce(input, ::cuda::std::plus<>{}, valid_items); }
  T Max(T input) { return Reduce(input, ::cuda::maximum<>{}); }
  T Min(T input) { return Reduce(input, ::cuda::minimum<>{}); }
  template <class OpT>
  T Reduce(T input, OpT op) {
    return reduce_lanes(LogicalWarpThreads, input, op, LogicalWarpThreads);
  }
  template <class OpT>
  T Reduce(T input, OpT op, int valid_items) {
    return reduce_lanes(LogicalWarpThreads, input, op, valid_items);
  }
};

template <class T, int LogicalWarpThreads = 32>
class WarpScan {
 public:
  struct TempStorage {};
  explicit WarpScan(TempStorage&) {}

  void InclusiveSum(T input, T& output) { InclusiveScan(input, output, ::cuda::std::plus<>{}); }
  void InclusiveSum(T input, T& output, T& aggregate) {
    InclusiveScan(input, output, ::cuda::std::plus<>{}, aggregate);
  }
  void ExclusiveSum(T input, T& output) { ExclusiveScan(input, output, T{}, ::cuda::std::plus<>{}); }
  void ExclusiveSum(T input, T& output, T& aggregate) {
    ExclusiveScan(input, output, T{}, ::cuda::std::plus<>{}, aggregate);
  }
  template <class OpT>
  void InclusiveScan(T input, T& output, OpT op) {
    output = scan_lanes(LogicalWarpThreads, input, op);
  }
  template <class OpT>
  void InclusiveScan(T input, T& output, OpT op, T& aggregate) {
    InclusiveScan(input, output, op);
    aggregate = Broadcast(output, LogicalWarpThreads - 1);
  }
  //! The first lane's output is not defined.
  template <class OpT>
  void ExclusiveScan(T input, T& output, OpT op) {
    T inclusive;
    Scan(input, inclusive, output, op);
  }
  template <class OpT>
  void ExclusiveScan(T input, T& output, T initial, OpT op) {
    T inclusive;
    Scan(input, inclusive, output, initial, op);
  }
  template <class OpT>
  void ExclusiveScan(T input, T& output, T initial, OpT op, T& aggregate) {
    T inclusive;
    InclusiveScan(input, inclusive, op, aggregate);
    output = shifted(inclusive, initial, op);
  }
  template <class OpT>
  void Scan(T input, T& inclusive, T& exclusive, OpT op) {
    InclusiveScan(input, inclusive, op);
    exclusive = lane_before(LogicalWarpThreads, inclusive);
  }
  template <class OpT>
  void Scan(T input, T& inclusive, T& exclusive, T initial, OpT op) {
    InclusiveScan(input, inclusive, op);
    exclusive = shifted(inclusive, initial, op);
    inclusive = op(initial, inclusive);
  }
  T Broadcast(T input, unsigned source) { return copy_lane(LogicalWarpThreads, input, static_cast<int>(source)); }

 private:
  template <class OpT>
  T shifted(T inclusive, T initial, OpT op) {
    const T before = lane_before(LogicalWarpThreads, inclusive);
    return my_lane() % LogicalWarpThreads == 0 ? initial : op(initial, before);
  }
};

}  // namespace emulator::detail::cub

namespace cub = emulator::detail::cub;
