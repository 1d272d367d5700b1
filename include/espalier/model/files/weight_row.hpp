// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "espalier/model/files/weight_type.hpp"

namespace espalier {

namespace detail {

inline float float_from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline float float_from_f16(std::uint16_t bits) {
  const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000U) << 16;
  const std::uint32_t rest = bits & 0x7FFFU;
  if (rest >= 0x7C00U) return std::bit_cast<float>(sign | 0x7F800000U | (rest & 0x3FFU) << 13);
  if (rest >= 0x0400U) return std::bit_cast<float>(sign | ((rest << 13) + (112U << 23)));
  const float magnitude = static_cast<float>(rest) * 0x1p-24F;
  return sign != 0 ? -magnitude : magnitude;
}

// A run of weights: their small integers, and the numbers that turn these into weights. A weight is q * scale, or
// q * scale + offset if its type has offsets. A scale is scale_unit * scale_step, an offset offset_unit * offset_step.
// The units belong to a block. The steps are integers. They are 1 if a block has only one scale; the K types and iq4_xs
// have a scale step for each run, and q2_k, q4_k and q5_k an offset step, which is 0 or less, because they subtract.
struct weight_run {
  std::uint16_t scale_unit = 0, offset_unit = 0;  // F16
  bool wide_unit = false;                         // true: scale_unit is BF16, for powers of two that F16 cannot hold
  std::int8_t scale_step = 1, offset_step = 1;
  std::int8_t q[32] = {};

  float scale() const {
    return (wide_unit ? float_from_bf16(scale_unit) : float_from_f16(scale_unit)) * static_cast<float>(scale_step);
  }
  float offset() const { return float_from_f16(offset_unit) * static_cast<float>(offset_step); }
};

constexpr bool has_offsets(weight_type type) {
  return type == weight_type::q4_1 || type == weight_type::q5_1 || type == weight_type::q2_k ||
         type == weight_type::q4_k || type == weight_type::q5_k;
}

// Number of weights in a run of a quantised type: the weights that share a scale.
constexpr int run_weights(weight_type type) {
  return type == weight_type::q2_k || type == weight_type::q3_k || type == weight_type::q6_k ? 16 : 32;
}

// The numbers that four bits choose from: iq4_values in iq4_nl and iq4_xs, mxfp4_values in mxfp4. The numbers of
// mxfp4_values are twice the numbers of the format E2M1.
inline constexpr std::int8_t iq4_values[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                               1,    13,   25,  38,  53,  69,  89,  113};
inline constexpr std::int8_t mxfp4_values[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

inline std::uint16_t two_bytes(const std::byte* from) {
  std::uint16_t value = 0;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Unpacks the 6-bit steps of scale and offset of run j of eight from twelve bytes. The steps of the first four runs are
// the low six bits of the first eight bytes. For the other runs, the low four bits of a step are half of one of the
// last four bytes, and its high two bits are the high two bits of one of the first eight bytes.
inline void unpack_k_steps(const std::byte* packed, int j, weight_run& run) {
  const auto at = [&](int i) { return std::to_integer<int>(packed[i]); };
  if (j < 4) {
    run.scale_step = static_cast<std::int8_t>(at(j) & 63);
    run.offset_step = static_cast<std::int8_t>(-(at(j + 4) & 63));
  } else {
    run.scale_step = static_cast<std::int8_t>((at(j + 4) & 15) | (at(j - 4) >> 6) << 4);
    run.offset_step = static_cast<std::int8_t>(-(at(j + 4) >> 4 | (at(j) >> 6) << 4));
  }
}

// Returns the scale of an mxfp4 block as BF16: half of 2^(exponent - 127), since mxfp4_values has doubled numbers.
inline std::uint16_t mxfp4_unit(int exponent) {
  return static_cast<std::uint16_t>(exponent < 2 ? 0x20 << exponent : (exponent - 1) << 7);
}

// Returns the 6-bit step, from -32 to 31, of run j of a q3_k block: low four bits in the first eight of twelve bytes,
// high two bits in the last four.
inline int q3_k_step(const std::byte* packed, int j) {
  const int low = std::to_integer<int>(packed[j % 8]) >> (j < 8 ? 0 : 4) & 15;
  const int high = std::to_integer<int>(packed[8 + j % 4]) >> (2 * (j / 4)) & 3;
  return (low | high << 4) - 32;
}

// Unpacks run `index` of a block of 32 (one run) or 256 (eight runs; sixteen for q2_k, q3_k and q6_k).
//
// Pre         type >= weight_type::q4_0
inline weight_run unpack_run(weight_type type, const std::byte* block, int index) {
  weight_run run;
  const auto low_or_high = [](std::byte packed, bool high) {
    return high ? std::to_integer<int>(packed >> 4) : std::to_integer<int>(packed & std::byte{15});
  };
  const auto bit = [](const std::byte* bits, int i, int n) { return std::to_integer<int>(bits[i] >> n) & 1; };
  const auto set = [&](int i, int value) { run.q[i] = static_cast<std::int8_t>(value); };
  if (type == weight_type::q8_0) {
    run.scale_unit = two_bytes(block);
    std::memcpy(run.q, block + 2, 32);
  } else if (type <= weight_type::q5_1) {
    const bool fifth_bit = type == weight_type::q5_0 || type == weight_type::q5_1;
    const bool offset = has_offsets(type);
    run.scale_unit = two_bytes(block);
    if (offset) run.offset_unit = two_bytes(block + 2);
    const std::byte* high = block + (offset ? 4 : 2);
    const std::byte* low = high + (fifth_bit ? 4 : 0);
    const int zero = offset ? 0 : (fifth_bit ? 16 : 8);
    for (int i = 0; i < 32; ++i)
      set(i, (low_or_high(low[i % 16], i >= 16) | (fifth_bit ? bit(high, i / 8, i % 8) << 4 : 0)) - zero);
  } else if (type == weight_type::iq4_nl) {
    run.scale_unit = two_bytes(block);
    for (int i = 0; i < 32; ++i)
      set(i, iq4_values[low_or_high(block[2 + i % 16], i >= 16)]);
  } else if (type == weight_type::mxfp4) {
    run.scale_unit = mxfp4_unit(std::to_integer<int>(block[0]));
    run.wide_unit = true;
    for (int i = 0; i < 32; ++i)
      set(i, mxfp4_values[low_or_high(block[1 + i % 16], i >= 16)]);
  } else if (type == weight_type::iq4_xs) {
    const int high = two_bytes(block + 2) >> (2 * index) & 3;
    run.scale_unit = two_bytes(block);
    run.scale_step = static_cast<std::int8_t>((low_or_high(block[4 + index / 2], index % 2 == 1) | high << 4) - 32);
    for (int i = 0; i < 32; ++i)
      set(i, iq4_values[low_or_high(block[8 + 16 * index + i % 16], i >= 16)]);
  } else if (type == weight_type::q2_k || type == weight_type::q3_k) {
    // Each byte has two bits of each of four runs: i, i + 2, i + 4 and i + 6.
    const bool has_minima = type == weight_type::q2_k;
    const int first = 32 * (index / 8) + 16 * (index % 2), shift = 2 * (index % 8 / 2);
    run.scale_unit = two_bytes(block + (has_minima ? 80 : 108));
    if (has_minima) {
      run.offset_unit = two_bytes(block + 82);
      run.scale_step = static_cast<std::int8_t>(low_or_high(block[index], false));
      run.offset_step = static_cast<std::int8_t>(-low_or_high(block[index], true));
    } else {
      run.scale_step = static_cast<std::int8_t>(q3_k_step(block + 96, index));
    }
    const std::byte* low = block + (has_minima ? 16 : 32) + first;
    for (int i = 0; i < 16; ++i) {
      const int third = has_minima ? 0 : 4 * bit(block, 16 * (index % 2) + i, index / 2) - 4;
      set(i, (std::to_integer<int>(low[i] >> shift) & 3) + third);
    }
  } else if (type == weight_type::q6_k) {
    run.scale_unit = two_bytes(block + 208);
    run.scale_step = std::to_integer<std::int8_t>(block[192 + index]);
    for (int i = 0; i < 16; ++i) {
      const int at = 16 * index + i, half = at / 128, quarter = at % 128 / 32, l = at % 32;
      const std::byte low = block[64 * half + l + (quarter % 2) * 32], high = block[128 + 32 * half + l];
      set(i, (low_or_high(low, quarter >= 2) | (std::to_integer<int>(high >> (2 * quarter)) & 3) << 4) - 32);
    }
  } else {
    run.scale_unit = two_bytes(block);
    run.offset_unit = two_bytes(block + 2);
    unpack_k_steps(block + 4, index, run);
    const std::byte* low = block + (type == weight_type::q5_k ? 48 : 16) + 32 * (index / 2);
    for (int i = 0; i < 32; ++i) {
      const int fifth = type == weight_type::q5_k ? bit(block + 16, i, index) << 4 : 0;
      set(i, low_or_high(low[i], index % 2 == 1) | fifth);
    }
  }
  return run;
}

}  // namespace detail

//! A view of one row of a matrix in the form in which its file stores it.
struct weight_row {
  weight_type type = weight_type::f32;
  std::span<const std::byte> bytes;  //!< [row_bytes(type, n)], little-endian, of any alignment
  int n = 0;                         //!< number of weights
  float scale = 1.0F;                //!< for i8_rows: the factor of every weight

  //! Returns a view of n floats.
  static weight_row of(const float* values, int n) {
    return {weight_type::f32, std::as_bytes(std::span(values, static_cast<std::size_t>(n))), n};
  }

  //! Writes the weights as floats, [n].
  //!
  //! Law         gives the same bits as ggml's own functions, except for i8_rows, which ggml does not have
  void decode(float* to) const {
    switch (type) {
      case weight_type::f32:
        if (n > 0) std::memcpy(to, bytes.data(), bytes.size());
        break;
      case weight_type::f16:
        for (int i = 0; i < n; ++i)
          to[i] = detail::float_from_f16(detail::two_bytes(bytes.data() + 2 * i));
        break;
      case weight_type::bf16:
        for (int i = 0; i < n; ++i)
          to[i] = detail::float_from_bf16(detail::two_bytes(bytes.data() + 2 * i));
        break;
      case weight_type::i8_rows:
        for (int i = 0; i < n; ++i)
          to[i] = static_cast<float>(std::to_integer<std::int8_t>(bytes[static_cast<std::size_t>(i)])) * scale;
        break;
      default:
        decode_runs(to);
    }
  }

 private:
  void decode_runs(float* to) const {
    const int in_block = block_weights(type), in_run = detail::run_weights(type);
    for (int first = 0; first < n; first += in_run) {
      const detail::weight_run run =
          detail::unpack_run(type, bytes.data() + first / in_block * block_bytes(type), first % in_block / in_run);
      const float scale_of_run = run.scale(), offset = run.offset();
      for (int i = 0; i < in_run; ++i) {
        const float product = static_cast<float>(run.q[i]) * scale_of_run;
        to[first + i] = detail::has_offsets(type) ? product + offset : product;
      }
    }
  }
};

}  // namespace espalier
