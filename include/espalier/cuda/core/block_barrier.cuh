// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cooperative_groups.h>
#include <cuda_runtime.h>

#include "espalier/cuda/core/ptx.cuh"

namespace espalier::cuda {

//! A barrier of all blocks of a cooperative launch, in two halves. Between arrive() and wait() a block may do work that
//! does not depend on other blocks.
//!
//! All threads of each block call arrive(), then wait(), then arrive() again, and so on. Everything that a thread wrote
//! before its arrive() is seen by all threads after their next wait().
//!
//! Shapes      arrivals [1], in the memory of the device, 0 before its first use; a launch leaves it ready for the next
//!             one
//! Pre         one grid at a time uses a counter; no grid uses it after a launch that ended before all blocks had
//!             arrived
class grid_barrier {
 public:
  __device__ explicit grid_barrier(unsigned* arrivals) : arrivals_(arrivals) {
    // The counter's highest bit cannot change before this block has arrived.
    if (threadIdx.x == 0) phase_ = ptx::load_acquire(arrivals) & turn;
  }

  __device__ void arrive() {
    __syncthreads();
    // The last block to arrive makes the low bits overflow into the highest bit, and leaves them 0.
    if (threadIdx.x == 0) ptx::add_release(arrivals_, blockIdx.x == 0 ? turn - (gridDim.x - 1) : 1U);
  }

  __device__ void wait() {
    if (threadIdx.x == 0) {
      while ((ptx::load_acquire(arrivals_) & turn) == phase_) {
      }
      phase_ ^= turn;
    }
    __syncthreads();
  }

 private:
  static constexpr unsigned turn = 0x80000000U;

  unsigned* arrivals_;
  unsigned phase_ = 0;
};

//! A barrier like grid_barrier, for a grid that is one thread block cluster.
//!
//! Pre         the kernel is compiled for compute capability 9.0 or later, or the grid is one block: in code for
//!             earlier devices this is a barrier of the block alone
class cluster_barrier {
 public:
  __device__ explicit cluster_barrier(unsigned*) {}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  __device__ void arrive() {
    token_ = cooperative_groups::this_cluster().barrier_arrive();
  }
  __device__ void wait() {
    cooperative_groups::this_cluster().barrier_wait(static_cast<token_type&&>(token_));
  }

 private:
  using token_type = decltype(cooperative_groups::this_cluster().barrier_arrive());

  token_type token_{};
#else
  __device__ void arrive() {
    __syncthreads();
  }
  __device__ void wait() {}
#endif
};

}  // namespace espalier::cuda
