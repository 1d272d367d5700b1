// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/weight_matrix.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "espalier/model/llama/simd.hpp"

#if defined(__FAST_MATH__)
#error "-ffast-math leaves out the additions that round activations: compile without it what runs models"
#endif

namespace espalier::detail {

// 32 numbers of a row as integers from -127 to 127. Number i is about scale * q[i].
struct alignas(16) activation_block {
  static constexpr int size = 32;

  std::int8_t q[size];
  float scale;          // the greatest magnitude / 127
  float scaled_sum;     // scale * (the sum of q)
  std::int32_t sum[2];  // of the first and the second half of q
};
static_assert(sizeof(activation_block) == 48);

constexpr int activation_blocks(int inputs) {
  return (inputs + activation_block::size - 1) / activation_block::size;
}

// Writes 32 numbers as a block: each is divided by the scale and rounded to the nearest integer, halves to even. Every
// processor and compiler gives the same block, since none may join a quotient and a sum into one rounding, as it may a
// product and a sum. If a number is not finite, the scale is NaN, and so are all products with the block.
inline void quantise_block(const float* x, activation_block& to) {
  constexpr int size = activation_block::size;
  simd_float most{}, difference{};
  for (int i = 0; i < size; i += simd_lanes) {
    const simd_float value = simd_load(x + i);
    most = simd_max(simd_max(value, -value), most);
    difference += value - value;  // 0, or NaN where a number is not finite
  }
  const float greatest = simd_greatest(most);
  const bool finite = simd_sum(difference) == 0.0F;
  // Numbers this small become 0: a quotient by their scale might not be finite.
  if (!finite || greatest <= 1e-30F) {
    to = {{}, finite ? 0.0F : std::numeric_limits<float>::quiet_NaN(), 0.0F, {}};
    return;
  }
  to.scale = greatest / 127.0F;
  // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer, halves to even.
  const simd_float scale = simd_broadcast(to.scale), magic = simd_broadcast(12582912.0F);
  for (int half = 0; half < 2; ++half) {
    simd_float sum{};  // of integers, which are exact in any order
    for (int i = size / 2 * half; i < size / 2 * (half + 1); i += simd_lanes) {
      const simd_float rounded = simd_load(x + i) / scale + magic - magic;
      simd_store_int8(to.q + i, rounded);
      sum += rounded;
    }
    to.sum[half] = static_cast<std::int32_t>(simd_sum(sum));
  }
  to.scaled_sum = to.scale * static_cast<float>(to.sum[0] + to.sum[1]);
}

// Writes the first n numbers, and zeros after them, as a block.
inline void quantise_block(const float* x, int n, activation_block& to) {
  if (n >= activation_block::size) return quantise_block(x, to);
  float padded[activation_block::size] = {};
  std::memcpy(padded, x, static_cast<std::size_t>(n) * sizeof(float));
  quantise_block(padded, to);
}

}  // namespace espalier::detail
