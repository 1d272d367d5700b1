// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "emulator/device.hpp"

namespace emulator::detail::groups {

class thread_block {
 public:
  static void sync() { __syncthreads(); }
  static unsigned thread_rank() { return self().rank; }
  static unsigned num_threads() { return static_cast<unsigned>(volume(blockDim)); }
  static unsigned size() { return num_threads(); }
  static dim3 thread_index() { return threadIdx; }
  static dim3 group_index() { return blockIdx; }
  static dim3 dim_threads() { return blockDim; }
};
inline thread_block this_thread_block() {
  return {};
}

class cluster_group {
 public:
  using arrival_token = unsigned;
  static void sync() { the_scheduler.sync(place().all, "cluster.sync"); }
  static arrival_token barrier_arrive() {
    const unsigned phase = place().all.phase;
    the_scheduler.arrive(place().all);
    return phase;
  }
  static void barrier_wait(arrival_token phase) { the_scheduler.await(place().all, phase, "cluster.barrier_wait"); }
  static unsigned block_rank() { return self().home->rank; }
  static unsigned num_blocks() { return place().n_blocks; }
  static unsigned thread_rank() { return block_rank() * thread_block::num_threads() + thread_block::thread_rank(); }
  static unsigned num_threads() { return num_blocks() * thread_block::num_threads(); }
  static unsigned size() { return num_threads(); }
  //! The address of the same variable in the shared memory of another block of the cluster.
  template <class T>
  static T* map_shared_rank(T* address, unsigned rank) {
    const auto offset = reinterpret_cast<const volatile unsigned char*>(address) -
                        static_cast<const volatile unsigned char*>(emulator_shared_memory());
    return reinterpret_cast<T*>(the_scheduler.block_of_cluster(rank).shared.get() + offset);
  }

 private:
  static cluster& place() { return *self().home->home; }
};
inline cluster_group this_cluster() {
  return {};
}

class grid_group {
 public:
  static bool is_valid() { return the_scheduler.cooperative(); }
  static void sync() {
    if (!is_valid()) stop("grid.sync was called in a grid that was not launched cooperatively");
    the_scheduler.sync(the_scheduler.grid_barrier, "grid.sync");
  }
  static unsigned long long num_blocks() { return volume(gridDim); }
  static unsigned long long block_rank() {
    return blockIdx.x + std::uint64_t{gridDim.x} * (blockIdx.y + std::uint64_t{gridDim.y} * blockIdx.z);
  }
  static unsigned long long thread_rank() {
    return block_rank() * thread_block::num_threads() + thread_block::thread_rank();
  }
  static unsigned long long num_threads() { return num_blocks() * thread_block::num_threads(); }
  static unsigned long long size() { return num_threads(); }
};
inline grid_group this_grid() {
  return {};
}

//! Part of a warp.
template <unsigned Size>
class thread_block_tile {
  static_assert(Size >= 1 && Size <= 32 && (Size & (Size - 1)) == 0);

 public:
  static unsigned thread_rank() { return my_lane() % Size; }
  static constexpr unsigned num_threads() { return Size; }
  static constexpr unsigned size() { return Size; }
  static unsigned meta_group_rank() { return thread_block::thread_rank() / Size; }
  static unsigned meta_group_size() { return (thread_block::num_threads() + Size - 1) / Size; }
  static void sync() { __syncwarp(mask()); }
  template <class T>
  static T shfl(T value, int source) {
    return __shfl_sync(mask(), value, source, width);
  }
  template <class T>
  static T shfl_up(T value, unsigned delta) {
    return __shfl_up_sync(mask(), value, delta, width);
  }
  template <class T>
  static T shfl_down(T value, unsigned delta) {
    return __shfl_down_sync(mask(), value, delta, width);
  }
  template <class T>
  static T shfl_xor(T value, unsigned lanes) {
    return __shfl_xor_sync(mask(), value, static_cast<int>(lanes), width);
  }
  static unsigned ballot(int predicate) { return __ballot_sync(mask(), predicate) >> first(); }
  static int any(int predicate) { return __any_sync(mask(), predicate); }
  static int all(int predicate) { return __all_sync(mask(), predicate); }

 private:
  static constexpr int width = static_cast<int>(Size);
  static unsigned first() { return my_lane() & ~(Size - 1); }
  static unsigned mask() { return (0xFFFFFFFFU >> (32 - Size)) << first(); }
};
template <unsigned Size, class GroupT>
thread_block_tile<Size> tiled_partition(const GroupT&) {
  return {};
}

template <class GroupT>
void sync(const GroupT&) {
  GroupT::sync();
}

}  // namespace emulator::detail::groups

namespace cooperative_groups = emulator::detail::groups;
