// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/weight_matrix.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "espalier/model/llama/panel_part.hpp"
#include "espalier/model/llama/simd.hpp"

namespace espalier::detail {

// The exact product of some rows and a part of a panel. A weight is turned into its float once, in a register, and is
// multiplied by all rows. Every element is one chain of multiply-adds over the inputs in ascending order, as in
// float_panel.
class code_product {
 public:
  explicit code_product(const panel_part& part) : part_(part) {}

  // Adds the products of the first rows to sums[r][32] and returns the number of these rows: all if there are up to
  // four, four if there are five to seven, else eight. From four rows on it also writes the weights as floats to
  // `decoded`, [inputs][32], for the rows that are left.
  int multiply(const float* x, std::ptrdiff_t x_stride, int rows, float* sums, float* decoded) const {
    if (rows >= 8) {
      multiply_rows<8>(x, x_stride, sums, decoded);
      return 8;
    }
    if (rows >= 4) {
      multiply_rows<4>(x, x_stride, sums, decoded);
      return 4;
    }
    if (rows == 3) multiply_rows<3>(x, x_stride, sums, nullptr);
    if (rows == 2) multiply_rows<2>(x, x_stride, sums, nullptr);
    if (rows == 1) multiply_rows<1>(x, x_stride, sums, nullptr);
    return rows;
  }

  // Writes the weights, [inputs][32].
  void decode(float* to) const { multiply_rows<0>(nullptr, 0, nullptr, to); }

 private:
  // A converter of codes into floats. The lowest bit of a code is bit `at` of its lane. With the exponent of
  // 2^(23 - at) in front, the lane is the float 2^(23 - at) + code. Subtracting that power and the code's zero from it,
  // in one step, is exact. In signed codes the sign bit is flipped, which makes them unsigned codes with a zero of 128.
  struct code_bits {
    simd_int mask, exponent;
    simd_float zero;

    code_bits(int at, int codes, const panel_part& part)
        : mask(simd_int{} + (codes << at)),
          exponent(simd_int{} + ((127 + 23 - at) << 23 | (part.signed_codes ? 128 << at : 0))),
          zero(simd_broadcast(static_cast<float>((1 << (23 - at)) + (part.signed_codes ? 128 : part.zero)))) {}

    // Returns weights. Each is rounded once: in the product with its scale or, if that product is exact, in the sum
    // with its offset.
    [[gnu::always_inline]] simd_float weight(const std::byte* from, simd_float scale, simd_float offset) const {
      simd_int bits;
      std::memcpy(&bits, from, sizeof bits);
      bits = (bits & mask) ^ exponent;
      simd_float value;
      std::memcpy(&value, &bits, sizeof value);
      return multiply_add(value - zero, scale, offset);
    }
  };

  template <int RowsT>
  void multiply_rows(const float* x, std::ptrdiff_t x_stride, float* sums, float* decoded) const {
    constexpr int width = 2 * simd_lanes;
    const int codes_of_byte = part_.nibbles ? 15 : 255;
    const code_bits bits[2] = {{8, codes_of_byte, part_}, {part_.nibbles ? 12 : 8, codes_of_byte, part_}};
    for (int o = 0; o < panel_layout::outputs; o += width) {
      simd_float sum[RowsT > 0 ? RowsT : 1][2];
#pragma GCC unroll 8
      for (int r = 0; r < RowsT; ++r) {
        sum[r][0] = simd_load(sums + panel_layout::outputs * r + o);
        sum[r][1] = simd_load(sums + panel_layout::outputs * r + o + simd_lanes);
      }
      int input = 0;
      for (int b = 0; b < part_.n_blocks; ++b) {
        if (o == 0) part_.fetch_ahead(b);
        for (int half = 0; half < 2; ++half) {
          const float *scales = part_.scales(b, half) + o, *offsets = part_.offsets(b, half) + o;
          const simd_float scale[2] = {simd_load(scales), simd_load(scales + simd_lanes)};
          const simd_float offset[2] = {simd_load(offsets), simd_load(offsets + simd_lanes)};
          const std::byte* codes = part_.codes[b] + 4 * o + (part_.nibbles ? 0 : 512 * half);
          for (int v = 0; v < 4; ++v, codes += panel_layout::vector_bytes) {
#pragma GCC unroll 4
            for (int k = 0; k < 4; ++k, ++input) {
              // Loads move byte k of each lane into the place of byte 1.
              const simd_float low = bits[half].weight(codes + k - 1, scale[0], offset[0]);
              const simd_float high = bits[half].weight(codes + k - 1 + 4 * simd_lanes, scale[1], offset[1]);
              if constexpr (RowsT == 0 || RowsT >= 4) {
                simd_store(decoded + panel_layout::outputs * input + o, low);
                simd_store(decoded + panel_layout::outputs * input + o + simd_lanes, high);
              }
#pragma GCC unroll 8
              for (int r = 0; r < RowsT; ++r) {
                const simd_float value = simd_broadcast(x[r * x_stride + input]);
                sum[r][0] = multiply_add(value, low, sum[r][0]);
                sum[r][1] = multiply_add(value, high, sum[r][1]);
              }
            }
          }
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < RowsT; ++r) {
        simd_store(sums + panel_layout::outputs * r + o, sum[r][0]);
        simd_store(sums + panel_layout::outputs * r + o + simd_lanes, sum[r][1]);
      }
    }
  }

  const panel_part& part_;
};

}  // namespace espalier::detail
