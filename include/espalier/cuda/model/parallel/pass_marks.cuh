// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/parallel/parallel_backend.cu
#pragma once

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"

namespace espalier::cuda::detail {

// Words in page-locked memory by which a stream tells the host of its passes over ranks, and the host tells the stream
// of a failure.
struct pass_words {
  std::uint32_t begun, ended;  // how many passes have begun, and how many have ended
  std::uint32_t broken;        // not 0: calls between ranks have failed
};

template <class UnusedT = void>
ESPALIER_KERNEL void begin_pass(pass_words* words) {
  words->begun = words->begun + 1;
  __threadfence_system();
}

inline constexpr unsigned end_pass_threads = 256;

template <class UnusedT = void>
ESPALIER_KERNEL void end_pass(volatile pass_words* words, std::uint32_t* rows, std::size_t n) {
  if (words->broken != 0) {
    for (std::size_t i = std::size_t{blockIdx.x} * end_pass_threads + threadIdx.x; i < n;
         i += std::size_t{gridDim.x} * end_pass_threads)
      rows[i] = 0xFFFFFFFFU;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) words->ended = words->begun;
}

// Marks by which the host learns that a pass in a stream has begun or ended, also in the replay of a graph. After
// break_off() the rows that a pass computes become NaN at its end.
class pass_marks {
 public:
  pass_marks() : words_(1) { words_[0] = {}; }

  void begin(cudaStream_t stream) const { launch("begin_pass", begin_pass<>, {}, stream, words_.data()); }

  // Pre: rows are aligned to 4 bytes, and bytes is a multiple of 4.
  void end(void* rows, std::size_t bytes, cudaStream_t stream) const {
    constexpr unsigned blocks = 32;  // more than one is of use only after a failure
    launch("end_pass", end_pass<>, {.grid = blocks, .threads = end_pass_threads}, stream, words_.data(),
           static_cast<std::uint32_t*>(rows), bytes / sizeof(std::uint32_t));
  }

  // Called when calls between ranks have failed: the rows of each pass that ends from now on become NaN.
  void break_off() const { std::atomic_ref(words_[0].broken).store(1); }
  bool broken() const { return std::atomic_ref(words_[0].broken).load() != 0; }

  std::uint32_t n_ended() const { return std::atomic_ref(words_[0].ended).load(); }
  bool under_way() const { return std::atomic_ref(words_[0].begun).load() != n_ended(); }

 private:
  pinned_array<pass_words> words_;
};

}  // namespace espalier::cuda::detail
