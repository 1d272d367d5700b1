// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/launch.cuh"

namespace bench {

//! Random numbers with variance scale * scale, computed where they are needed.
template <class NumberT>
ESPALIER_KERNEL void write_random(NumberT* to, std::size_t n, float scale, std::uint32_t seed, float mean) {
  const std::size_t step = static_cast<std::size_t>(gridDim.x) * blockDim.x;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n; i += step) {
    // Four sums of bytes of a mixed counter: nearly normally distributed.
    std::uint64_t x = (static_cast<std::uint64_t>(seed) << 40) ^ i;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    x ^= x >> 31;
    const auto sum = static_cast<float>((x & 0xFFFF) + ((x >> 16) & 0xFFFF) + ((x >> 32) & 0xFFFF) + (x >> 48));
    to[i] = static_cast<NumberT>((sum / 65536.0F - 2.0F) * 1.7320508F * scale + mean);
  }
}

template <class NumberT>
void fill_random(NumberT* to, std::size_t n, float scale, std::uint32_t seed, cudaStream_t s, float mean = 0) {
  const std::size_t blocks = std::min<std::size_t>((n + 255) / 256, 2048);
  espalier::cuda::launch("write_random", write_random<NumberT>,
                         {.grid = dim3(static_cast<unsigned>(blocks)), .threads = 256}, s, to, n, scale, seed, mean);
}

}  // namespace bench
