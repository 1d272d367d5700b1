// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/files/weight_type.hpp"

namespace espalier {

namespace detail {

// Returns the F16 that is nearest to the value; halfway between two, the one whose last bit is 0.
inline std::uint16_t f16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>(bits >> 16 & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return sign | 0x7E00U;
  if (magnitude >= 0x477FF000U) return sign | 0x7C00U;
  if (magnitude < 0x38800000U) {  // below the smallest normal number: a multiple of 2^-24
    const float steps = std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24F);
    return static_cast<std::uint16_t>(sign | static_cast<std::uint16_t>(steps));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + (magnitude >> 13 & 1U);
  return static_cast<std::uint16_t>(sign | (rounded - (112U << 23)) >> 13);
}

inline std::uint16_t bf16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>(bits >> 16 | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + (bits >> 16 & 1U)) >> 16);
}

}  // namespace detail

//! A converter of rows of weights into another type. It holds one converted row at a time.
class rounded_row {
 public:
  //! Returns the row in another type; valid until the next call. Blocks are rounded as ggml does it: the number of
  //! greatest magnitude gets the integer of greatest magnitude. In i8_rows a row has one scale.
  //!
  //! Errors      model_error for a weight that is not finite, and for a weight or scale that is not finite after
  //!             rounding; none if type is f32
  //! Pre         type is f32, bf16, i8_rows, q8_0 or q4_0, and its blocks divide row.n
  weight_row operator()(const weight_row& row, weight_type type) {
    values_.resize(static_cast<std::size_t>(row.n));
    row.decode(values_.data());
    if (type == weight_type::f32) return weight_row::of(values_.data(), row.n);
    for (const float value : values_) {
      if (!std::isfinite(value))
        raise<model_error>("a weight is ", value, ", which cannot be rounded to ", name_of(type), ".");
    }
    bytes_.resize(row_bytes(type, row.n));
    if (type == weight_type::i8_rows) return {type, bytes_, row.n, round_bytes()};
    std::byte* to = bytes_.data();
    for (int i = 0; i < row.n; i += block_weights(type), to += block_bytes(type)) {
      const float* x = values_.data() + i;
      if (type == weight_type::bf16) {
        const std::uint16_t bits = detail::bf16_from_float(*x);
        require_finite(detail::float_from_bf16(bits), *x, type);
        put(to, bits);
      } else if (type == weight_type::q8_0) {
        round_q8_0(x, to);
      } else {
        round_q4_0(x, to);
      }
    }
    return {type, bytes_, row.n};
  }

 private:
  static void put(std::byte* to, std::uint16_t value) { std::memcpy(to, &value, sizeof value); }

  static void require_finite(float rounded, float value, weight_type type) {
    if (!std::isfinite(rounded))
      raise<model_error>("a weight or scale of ", value, " is too large for ", name_of(type), ".");
  }

  // Writes a block's scale, and returns the factor that turns its weights into integers: 0 if the scale is 0 as F16.
  static float put_scale(std::byte* to, float scale, weight_type type) {
    const std::uint16_t bits = detail::f16_from_float(scale);
    const float rounded = detail::float_from_f16(bits);
    require_finite(rounded, scale, type);
    put(to, bits);
    return rounded == 0.0F ? 0.0F : 1.0F / scale;
  }

  static float greatest(const float* x) {
    return *std::max_element(x, x + 32, [](float a, float b) { return std::fabs(a) < std::fabs(b); });
  }

  // Rounds values_ into bytes_, and returns their scale. If all weights are so small that division by their scale might
  // not give a finite number, the weights and the scale become 0.
  float round_bytes() {
    float most = 0.0F;
    for (const float value : values_)
      most = (std::max)(most, std::fabs(value));
    const float scale = most <= 1e-30F ? 0.0F : most / 127.0F;
    // Adding 1.5 * 2^23 rounds to an integer, halves to even.
    const float divisor = scale > 0.0F ? scale : 1.0F, magic = 12582912.0F;
    for (std::size_t i = 0; i < values_.size(); ++i)
      bytes_[i] = static_cast<std::byte>(static_cast<std::int8_t>((values_[i] / divisor + magic) - magic));
    return scale;
  }

  static void round_q8_0(const float* x, std::byte* to) {
    const float scale = std::fabs(greatest(x)) / 127.0F, inverse = put_scale(to, scale, weight_type::q8_0);
    for (int i = 0; i < 32; ++i)
      to[2 + i] = static_cast<std::byte>(static_cast<std::int8_t>(std::round(x[i] * inverse)));
  }

  static void round_q4_0(const float* x, std::byte* to) {
    const float scale = greatest(x) / -8.0F, inverse = put_scale(to, scale, weight_type::q4_0);
    const auto code = [&](int i) {
      return static_cast<std::byte>((std::min)(15, static_cast<int>(x[i] * inverse + 8.5F)));
    };
    for (int i = 0; i < 16; ++i)
      to[2 + i] = code(i) | code(i + 16) << 4;
  }

  std::vector<float> values_;
  std::vector<std::byte> bytes_;
};

}  // namespace espalier
