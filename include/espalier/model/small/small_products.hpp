// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#if defined(__ARM_FEATURE_DSP)
#include <arm_acle.h>
#endif

#include "espalier/model/small/small_weights.hpp"

//! Products of rows of activations, rounded to 8 bits with a scale a row, with weights of 8 bits. Sums are integers and
//! exact, so that a row's do not depend on those beside it.
namespace espalier::detail {

// Calls body(0) to body(N - 1) with constants: what they index may stay in registers.
template <std::int32_t N, class BodyT>
[[gnu::always_inline]] inline void each(BodyT&& body) {
  [&]<std::int32_t... Index>(std::integer_sequence<std::int32_t, Index...>) __attribute__((always_inline)) {
    (body(std::integral_constant<std::int32_t, Index>()), ...);
  }
  (std::make_integer_sequence<std::int32_t, N>());
}

// A row as integers from -127 to 127, of which each four are given to put(first, integers). Returns their scale.
template <class PutT>
float round_row(const float* x, std::int32_t n, PutT&& put) {
  float greatest = 0;
  for (std::int32_t i = 0; i < n; i += 4) {
    each<4>([&](auto l) __attribute__((always_inline)) { greatest = (std::max)(greatest, __builtin_fabsf(x[i + l])); });
  }
  const float inverse = greatest > 0 ? 127.0F / greatest : 0.0F;
  // Adding it rounds to an integer, in the low bits.
  constexpr float rounding = 12582912.0F;
  constexpr std::int32_t rounding_bits = 0x4B400000;
  for (std::int32_t i = 0; i < n; i += 4) {
    std::int32_t four[4];
    each<4>([&](auto l) __attribute__((always_inline)) {
      four[l] = __builtin_bit_cast(std::int32_t, x[i + l] * inverse + rounding) - rounding_bits;
    });
    put(i, four);
  }
  return greatest / 127.0F;
}

// Where sums go: [rows][outputs] of floats, with the scales of rows and weights, over what is there or added to it.
struct product_target {
  float* out;
  const float* row_scales;
  const float* weight_scales;
  std::int32_t outputs;
  bool adds;

  template <std::int32_t Rows, std::int32_t Outputs>
  void put(std::int32_t rows, std::int32_t output, const std::int32_t (&sums)[Outputs][Rows]) const {
    float* to = out + output;
    for (std::int32_t r = 0; r < rows; ++r, to += outputs) {
      each<Outputs>([&](auto o) __attribute__((always_inline)) {
        const float value = static_cast<float>(sums[o][r]) * (row_scales[r] * weight_scales[output + o]);
        to[o] = adds ? to[o] + value : value;
      });
    }
  }
};

// For machines of 32 bits: one product an instruction, or two where there are DSP instructions. A weight is read once
// for up to six rows.
class word_products {
 public:
  static constexpr std::int32_t most = 6;
  static constexpr std::size_t bytes(std::int32_t rows, std::int32_t inputs) {
    return sizeof(std::int16_t) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(inputs);
  }
  // Rows of the next block where `left` are left.
  static constexpr std::int32_t block(std::int32_t left) { return left / ((left + most - 1) / most); }

  // Row `row` of a block of `rows`. Shapes: x [inputs / 4][rows][4]
  static float store(void* memory, std::int32_t rows, std::int32_t row, const float* from, std::int32_t inputs) {
    auto* const x = static_cast<std::int16_t*>(memory) + row * 4;
    return round_row(
        from, inputs, [&](std::int32_t i, const std::int32_t(&four)[4]) __attribute__((always_inline)) {
          std::int16_t* const to = x + i * rows;
          each<4>([&](auto l) __attribute__((always_inline)) { to[place(l)] = static_cast<std::int16_t>(four[l]); });
        });
  }

  static void multiply(const void* memory, std::int32_t rows, const small_weights::matrix_type& w,
                       const product_target& to) {
    const auto* const x = static_cast<const std::int16_t*>(memory);
    switch (rows) {
      case 1:
        return multiply<1, 4>(x, w, to);
      case 2:
        return multiply<2, 2>(x, w, to);
      case 3:
        return multiply<3, 1>(x, w, to);
      case 4:
        return multiply<4, 1>(x, w, to);
      case 5:
        return multiply<5, 1>(x, w, to);
      default:
        return multiply<6, 1>(x, w, to);
    }
  }

 private:
#if defined(__ARM_FEATURE_DSP)
  // Bytes 0 and 2 of a word are one pair of half-words, 1 and 3 the other.
  static constexpr std::int32_t place(std::int32_t i) {
    return i == 1 ? 2 : i == 2 ? 1 : i;
  }

  struct weights_type {
    int16x2_t even, odd;
    [[gnu::always_inline]] explicit weights_type(const std::int8_t* w) {
      std::uint32_t word = 0;
      std::memcpy(&word, w, 4);
      even = __sxtb16(word);
      asm("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(word));
    }
  };
  struct inputs_type {
    int16x2_t even, odd;
    [[gnu::always_inline]] explicit inputs_type(const std::int16_t* x) {
      std::memcpy(&even, x, 4);
      std::memcpy(&odd, x + 2, 4);
    }
  };
  [[gnu::always_inline]] static void add(std::int32_t& sum, const weights_type& w, const inputs_type& x) {
    sum = __smlad(w.odd, x.odd, __smlad(w.even, x.even, sum));
  }
#else
  static constexpr std::int32_t place(std::int32_t i) {
    return i;
  }

  struct weights_type {
    const std::int8_t* at;
    [[gnu::always_inline]] explicit weights_type(const std::int8_t* w) : at(w) {}
  };
  struct inputs_type {
    const std::int16_t* at;
    [[gnu::always_inline]] explicit inputs_type(const std::int16_t* x) : at(x) {}
  };
  [[gnu::always_inline]] static void add(std::int32_t& sum, const weights_type& w, const inputs_type& x) {
    for (std::int32_t i = 0; i < 4; ++i)
      sum += w.at[i] * x.at[i];
  }
#endif

  template <std::int32_t Rows, std::int32_t Outputs>
  static void multiply(const std::int16_t* inputs, const small_weights::matrix_type& w, const product_target& to) {
    for (std::int32_t output = 0; output < w.outputs; output += Outputs) {
      std::int32_t sums[Outputs][Rows] = {};
      const std::int16_t* x = inputs;
      const std::int8_t* weights = w.rows + static_cast<std::ptrdiff_t>(output) * w.inputs;
      const std::int8_t* const end = weights + w.inputs;
      do {
        each<2>([&](auto) __attribute__((always_inline)) {
          if constexpr (Outputs == 1) {
            const weights_type four(weights);
            each<Rows>([&](auto r) __attribute__((always_inline)) { add(sums[0][r], four, inputs_type(x + 4 * r)); });
          } else {
            each<Rows>([&](auto r) __attribute__((always_inline)) {
              const inputs_type four(x + 4 * r);
              each<Outputs>([&](auto o) __attribute__((always_inline)) {
                add(sums[o][r], weights_type(weights + o * w.inputs), four);
              });
            });
          }
          weights += 4;
          x += 4 * Rows;
        });
      } while (weights != end);
      std::int32_t found[Outputs][Rows];  // those of the loop stay in registers
      each<Outputs * Rows>([&](auto i) __attribute__((always_inline)) {
        found[i / Rows][i % Rows] = sums[i / Rows][i % Rows];
      });
      to.put(Rows, output, found);
    }
  }
};

// For machines of 64 bits: one multiplication for three rows, whose activations are 21 bits apart in one number. A sum
// of up to 64 products of a row has 21 bits.
class packed_products {
 public:
  static constexpr std::int32_t most = 6;
  static constexpr std::size_t bytes(std::int32_t rows, std::int32_t inputs) {
    return sizeof(std::int64_t) * static_cast<std::size_t>((rows + 2) / 3) * static_cast<std::size_t>(inputs);
  }
  static constexpr std::int32_t block(std::int32_t left) { return (std::min)(left, most); }

  // Shapes: x [inputs][packs], packs of three rows, the first in the low bits
  static float store(void* memory, std::int32_t rows, std::int32_t row, const float* from, std::int32_t inputs) {
    const std::int32_t packs = (rows + 2) / 3;
    auto* const x = static_cast<std::int64_t*>(memory) + row / 3;
    const std::int32_t shift = row % 3 * field;
    return round_row(
        from, inputs, [&](std::int32_t i, const std::int32_t(&four)[4]) __attribute__((always_inline)) {
          std::int64_t* to = x + i * packs;
          each<4>([&](auto l) __attribute__((always_inline)) {
            *to = (shift == 0 ? 0 : *to) + static_cast<std::int64_t>(four[l]) * (std::int64_t{1} << shift);
            to += packs;
          });
        });
  }

  static void multiply(const void* memory, std::int32_t rows, const small_weights::matrix_type& w,
                       const product_target& to) {
    const auto* const x = static_cast<const std::int64_t*>(memory);
    if (rows == 1) return multiply<1, 1>(x, rows, w, to);
    rows <= 3 ? multiply<1, 3>(x, rows, w, to) : multiply<2, 3>(x, rows, w, to);
  }

 private:
  static constexpr std::int32_t field = 21;
  static constexpr std::int32_t run = 64;

  template <std::int32_t Packs, std::int32_t Fields>
  static void multiply(const std::int64_t* inputs, std::int32_t rows, const small_weights::matrix_type& w,
                       const product_target& to) {
    for (std::int32_t output = 0; output < w.outputs; output += 4) {
      std::int32_t sums[4][Packs * Fields] = {};
      const std::int64_t* x = inputs;
      for (std::int32_t k = 0; k < w.inputs; k += Fields == 1 ? w.inputs : run) {
        const std::int8_t* weights[4];
        each<4>([&](auto o) __attribute__((always_inline)) {
          weights[o] = w.rows + static_cast<std::ptrdiff_t>(output + o) * w.inputs + k;
        });
        const std::int8_t* const end = weights[0] + (Fields == 1 ? w.inputs : (std::min)(w.inputs - k, run));
        std::int64_t packed[4][Packs] = {};
        do {
          each<8>([&](auto i) __attribute__((always_inline)) {
            each<4>([&](auto o) __attribute__((always_inline)) {
              const std::int64_t weight = weights[o][i];
              each<Packs>([&](auto p) __attribute__((always_inline)) { packed[o][p] += weight * x[i * Packs + p]; });
            });
          });
          each<4>([&](auto o) __attribute__((always_inline)) { weights[o] += 8; });
          x += 8 * Packs;
        } while (weights[0] != end);
        std::int64_t found[4 * Packs];  // those of the loop stay in registers
        each<4 * Packs>([&](auto i) __attribute__((always_inline)) { found[i] = packed[i / Packs][i % Packs]; });
        for (std::int32_t i = 0; i < 4 * Packs; ++i)
          unpack<Fields>(found[i], &sums[i / Packs][i % Packs * Fields]);
      }
      to.put(rows, output, sums);
    }
  }

  template <std::int32_t Fields>
  static void unpack(std::int64_t packed, std::int32_t* sums) {
    for (std::int32_t f = 0; f + 1 < Fields; ++f) {
      // The low bits, with their sign; what is above them has borrowed it.
      const std::int64_t low =
          static_cast<std::int64_t>(static_cast<std::uint64_t>(packed) << (64 - field)) >> (64 - field);
      sums[f] += static_cast<std::int32_t>(low);
      packed = (packed - low) >> field;
    }
    sums[Fields - 1] += static_cast<std::int32_t>(packed);
  }
};

using machine_products = std::conditional_t<sizeof(void*) == 8, packed_products, word_products>;

// y = W x for rows of floats; or y += W x.
//
// Shapes: x [rows][inputs]; y [rows][outputs]; memory: ProductsT::bytes(most, inputs), scales [most]
template <class ProductsT = machine_products>
void multiply_rows(const small_weights::matrix_type& w, const float* x, std::int32_t rows, float* y, bool adds,
                   void* memory) {
  for (std::int32_t first = 0; first < rows;) {
    const std::int32_t n = ProductsT::block(rows - first);
    float scales[ProductsT::most];
    for (std::int32_t r = 0; r < n; ++r)
      scales[r] = ProductsT::store(memory, n, r, x + static_cast<std::ptrdiff_t>(first + r) * w.inputs, w.inputs);
    ProductsT::multiply(memory, n, w,
                        {y + static_cast<std::ptrdiff_t>(first) * w.outputs, scales, w.scales, w.outputs, adds});
    first += n;
  }
}

}  // namespace espalier::detail
