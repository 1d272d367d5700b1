// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"

namespace bench {

//! Reads n words with 16-byte loads. Its result means nothing; writing it keeps the compiler from dropping the reads.
static __global__ void read_words(const uint4* words, std::size_t n, std::uint32_t* sink) {
  std::uint32_t all = 0;
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    const uint4 w = words[i];
    all |= w.x ^ w.y ^ w.z ^ w.w;
  }
  if (all == 0xDEADBEEFU) *sink = all;
}

//! Reads memory of the device once.
inline void read_pass(const void* from, std::size_t bytes, std::uint32_t* sink, int multiprocessors, cudaStream_t s) {
  espalier::cuda::launch("read_words", read_words,
                         {.grid = dim3(static_cast<unsigned>(8 * multiprocessors)), .threads = 256}, s,
                         static_cast<const uint4*>(from), bytes / sizeof(uint4), sink);
}

//! Fills the caches of the device with other data. It reads four times as much as the second-level cache holds and
//! writes nothing, so that nothing has to be written back during the next measurement.
class cache_flush {
 public:
  explicit cache_flush(const cudaDeviceProp& card, bool tiny)
      : words_(tiny ? 64 : 4 * static_cast<std::size_t>(card.l2CacheSize) / sizeof(uint4) + 64),
        sink_(1),
        multiprocessors_(card.multiProcessorCount) {
    espalier::cuda::require(cudaMemset(words_.data(), 1, words_.size() * sizeof(uint4)), "cudaMemset");
  }

  void operator()(cudaStream_t s) const {
    read_pass(words_.data(), words_.size() * sizeof(uint4), sink_.data(), multiprocessors_, s);
  }

 private:
  espalier::cuda::device_array<uint4> words_;
  espalier::cuda::device_array<std::uint32_t> sink_;
  int multiprocessors_;
};

}  // namespace bench
