// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/weight_matrix.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/simd.hpp"

#if defined(__FAST_MATH__)
#error "-ffast-math leaves out the additions that round activations: compile without it what runs models"
#endif

namespace espalier::detail {

// A block of 64 integers of a row; integers behind the end of the row are 0. It holds them either as `words`, or as
// `bytes`, where integer i is 256 bytes[0][i] + bytes[1][i].
union alignas(64) activation_block {
  static constexpr int size = 64;

  std::int16_t words[size];
  std::int8_t bytes[2][size];
};
static_assert(sizeof(activation_block) == 128);

constexpr int activation_blocks(int inputs) {
  return (inputs + activation_block::size - 1) / activation_block::size;
}

// Rows as integers from -greatest to greatest, with one scale a row: number i of row r is about scales[r] * integer i.
struct activation_rows {
  static constexpr float greatest = 127.0F * 256.0F;  // at most 127 * 256 + 127: above it bytes[0] would be 128

  const activation_block* blocks = nullptr;  // [activation_blocks(inputs)][rows]
  const float* scales = nullptr;             // [rows]
};

// Returns a row's scale: the greatest magnitude divided by activation_rows::greatest, or 0 if no magnitude is above
// 1e-30. It is NaN for a row with a number that is not finite, so that all products with the row are NaN.
inline float scale_of_row(const float* x, int n) {
  simd_float most{}, difference{};
  for (int i = 0; i < n; i += simd_lanes) {
    const simd_float value = n - i < simd_lanes ? simd_load_first(x + i, n - i) : simd_load(x + i);
    most = simd_max(simd_max(value, -value), most);
    difference += value - value;  // 0, or NaN where a number is not finite
  }
  if (!(simd_sum(difference) == 0.0F)) return std::numeric_limits<float>::quiet_NaN();
  // Numbers this small become 0: the inverse of their scale might not be finite.
  const float greatest = simd_greatest(most);
  return greatest <= 1e-30F ? 0.0F : greatest / activation_rows::greatest;
}

// Writes up to 64 numbers, multiplied by the inverse of the row's scale and rounded to the nearest integer (halves to
// even), as the bytes or the words of a block. Every processor and compiler gives the same integers: the comparison
// between the product and the rounding sum keeps a compiler from fusing the two.
inline void round_block(const float* x, int n, float inverse, bool as_bytes, activation_block& to) {
  constexpr int size = activation_block::size;
  typedef std::int16_t words_type __attribute__((vector_size(simd_lanes * sizeof(std::int16_t))));
  float padded[size];
  if (n < size) {
    std::memcpy(padded, x, static_cast<std::size_t>(n) * sizeof(float));
    std::fill(padded + n, padded + size, 0.0F);
    x = padded;
  }
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const simd_float factor = simd_broadcast(inverse), magic = simd_broadcast(12582912.0F),
                   least = simd_broadcast(-32768.0F);
  for (int i = 0; i < size; i += simd_lanes) {
    const simd_float shifted = simd_max(simd_load(x + i) * factor, least) + magic;
    simd_int integers;
    std::memcpy(&integers, &shifted, sizeof integers);
    integers -= 0x4B400000;
    if (as_bytes) {
      const simd_int high = (integers + 128) >> 8, low = integers - (high << 8);
      const simd_byte bytes[2] = {__builtin_convertvector(high, simd_byte), __builtin_convertvector(low, simd_byte)};
      std::memcpy(to.bytes[0] + i, &bytes[0], sizeof bytes[0]);
      std::memcpy(to.bytes[1] + i, &bytes[1], sizeof bytes[1]);
    } else {
      const words_type words = __builtin_convertvector(integers, words_type);
      std::memcpy(to.words + i, &words, sizeof words);
    }
  }
}

// Memory for the integers of some rows. Several threads may write different rows at the same time.
class activation_room {
 public:
  activation_room() = default;
  activation_room(int rows, int inputs)
      : block_(block_floats(rows, inputs) + static_cast<std::size_t>(rows), false),
        blocks_(reinterpret_cast<activation_block*>(block_.take(block_floats(rows, inputs)))),
        scales_(block_.take(static_cast<std::size_t>(rows))) {}

  // Writes rows first to last - 1 of the `rows` rows of x as integers, each as two bytes if `as_bytes`, and returns a
  // view of all rows.
  activation_rows write(const float* x, std::ptrdiff_t x_stride, int inputs, int rows, int first, int last,
                        bool as_bytes) {
    for (int row = first; row < last; ++row) {
      const float* from = x + row * x_stride;
      const float scale = scales_[row] = scale_of_row(from, inputs), inverse = 1.0F / scale;
      for (int b = 0; b < activation_blocks(inputs); ++b) {
        activation_block& to = blocks_[static_cast<std::ptrdiff_t>(b) * rows + row];
        const int at = activation_block::size * b;
        if (scale > 0.0F) {
          round_block(from + at, (std::min)(activation_block::size, inputs - at), inverse, as_bytes, to);
        } else {
          std::memset(&to, 0, sizeof to);
        }
      }
    }
    return {blocks_, scales_};
  }

 private:
  static std::size_t block_floats(int rows, int inputs) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(activation_blocks(inputs)) *
           sizeof(activation_block) / sizeof(float);
  }

  float_block block_;
  activation_block* blocks_ = nullptr;
  float* scales_ = nullptr;
};

}  // namespace espalier::detail
