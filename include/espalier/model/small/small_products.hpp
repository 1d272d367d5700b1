// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

// Two products an instruction.
#if defined(__ARM_FEATURE_DSP) && defined(__thumb2__)
#define ESPALIER_SMALL_DSP
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

  [[gnu::always_inline]] void put(std::int32_t row, std::int32_t output, std::int32_t sum) const {
    float* const at = out + row * outputs + output;
    const float value = static_cast<float>(sum) * (row_scales[row] * weight_scales[output]);
    *at = (adds ? *at : -0.0F) + value;
  }
};

// For machines of 32 bits: one product an instruction, or two where there are DSP instructions. A weight is read and
// made wide once for up to three rows.
class word_products {
 public:
  static constexpr std::int32_t most = 3;
  static constexpr std::size_t bytes(std::int32_t rows, std::int32_t inputs) {
    return sizeof(std::int16_t) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(inputs);
  }
  // Rows of the next block where `left` are left.
  static constexpr std::int32_t block(std::int32_t left) {
    const std::int32_t blocks = (left + most - 1) / most;
    return (left + blocks - 1) / blocks;
  }

  // Row `row` of a block of `rows`. Shapes: x [inputs / 8][rows][8]
  static float store(void* memory, std::int32_t rows, std::int32_t row, const float* from, std::int32_t inputs) {
    auto* const x = static_cast<std::int16_t*>(memory) + row * 8;
    return round_row(
        from, inputs, [&](std::int32_t i, const std::int32_t(&four)[4]) __attribute__((always_inline)) {
          std::int16_t* const to = x + (i & -8) * rows + (i & 4);
          each<4>([&](auto l) __attribute__((always_inline)) { to[place(l)] = static_cast<std::int16_t>(four[l]); });
        });
  }

  static void multiply(const void* memory, std::int32_t rows, const small_weights::matrix_type& w,
                       const product_target& to) {
    const auto* const x = static_cast<const std::int16_t*>(memory);
    switch (rows) {
      case 1:
        return multiply_one(x, w, to);
      case 2:
        return multiply<2>(x, w, to);
      default:
        return multiply<3>(x, w, to);
    }
  }

 private:
#if defined(ESPALIER_SMALL_DSP)
  // Bytes 0 and 2 of a word are one pair of half-words, 1 and 3 the other.
  static constexpr std::int32_t place(std::int32_t i) {
    return i == 1 ? 2 : i == 2 ? 1 : i;
  }

  // The sums of an output: eight weights are made wide, then eight activations of each row are loaded by one instruction.
  // The loop is whole, since a compiler runs out of registers at its edges. Returns the end of the weights.
  template <std::int32_t Rows>
  [[gnu::always_inline]] static const std::int8_t* add(const std::int16_t* x, const std::int8_t* w, std::int32_t inputs,
                                                       std::int32_t (&sums)[Rows]) {
    static_assert(Rows == 2 || Rows == 3);
    const float end = __builtin_bit_cast(float, w + inputs);  // there is no other register left
    std::int32_t a = 0, b = 0, c = 0, even[2], odd[2];
#define ESPALIER_SMALL_WIDE                                                                                       \
  "1: ldrd %[o0], %[o1], [%[w]], #8\n sxtb16 %[e0], %[o0]\n sxtb16 %[o0], %[o0], ror #8\n sxtb16 %[e1], %[o1]\n " \
  "sxtb16 %[o1], %[o1], ror #8\n"
#define ESPALIER_SMALL_ROW(sum)                                                                                        \
  "ldmia %[x]!, {r4, r5, r6, r8}\n smlad " sum ", %[e0], r4, " sum "\n smlad " sum ", %[o0], r5, " sum "\n smlad " sum \
  ", %[e1], r6, " sum "\n smlad " sum ", %[o1], r8, " sum "\n"
#define ESPALIER_SMALL_NEXT "vmov r4, %[end]\n cmp r4, %[w]\n bne 1b"
    if constexpr (Rows == 2) {
      asm(ESPALIER_SMALL_WIDE ESPALIER_SMALL_ROW("%[a]") ESPALIER_SMALL_ROW("%[b]") ESPALIER_SMALL_NEXT
          : [a] "+r"(a), [b] "+r"(b), [x] "+r"(x), [w] "+r"(w), [e0] "=&r"(even[0]), [o0] "=&r"(odd[0]),
            [e1] "=&r"(even[1]), [o1] "=&r"(odd[1])
          : [end] "t"(end)
          : "r4", "r5", "r6", "r8", "cc", "memory");
    } else {
      asm(ESPALIER_SMALL_WIDE ESPALIER_SMALL_ROW("%[a]") ESPALIER_SMALL_ROW("%[b]") ESPALIER_SMALL_ROW("%[c]")
              ESPALIER_SMALL_NEXT
          : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [x] "+r"(x), [w] "+r"(w), [e0] "=&r"(even[0]), [o0] "=&r"(odd[0]),
            [e1] "=&r"(even[1]), [o1] "=&r"(odd[1])
          : [end] "t"(end)
          : "r4", "r5", "r6", "r8", "cc", "memory");
      sums[2] = c;
    }
#undef ESPALIER_SMALL_WIDE
#undef ESPALIER_SMALL_ROW
#undef ESPALIER_SMALL_NEXT
    sums[0] = a;
    sums[1] = b;
    return w;
  }
  // One row and two outputs.
  [[gnu::always_inline]] static const std::int8_t* add_two(const std::int16_t* x, const std::int8_t* w,
                                                           std::int32_t inputs, std::int32_t (&sums)[2]) {
    const std::int8_t *second = w + inputs, *const end = second;
    std::int32_t first_sum = 0, second_sum = 0, low, high, even;
    asm("1: ldmia %2!, {r4, r5, r6, r8}\n"
        "ldrd %5, %6, [%3], #8\n"
        "sxtb16 %7, %5\n sxtb16 %5, %5, ror #8\n smlad %0, %7, r4, %0\n smlad %0, %5, r5, %0\n"
        "sxtb16 %7, %6\n sxtb16 %6, %6, ror #8\n smlad %0, %7, r6, %0\n smlad %0, %6, r8, %0\n"
        "ldrd %5, %6, [%4], #8\n"
        "sxtb16 %7, %5\n sxtb16 %5, %5, ror #8\n smlad %1, %7, r4, %1\n smlad %1, %5, r5, %1\n"
        "sxtb16 %7, %6\n sxtb16 %6, %6, ror #8\n smlad %1, %7, r6, %1\n smlad %1, %6, r8, %1\n"
        "cmp %3, %8\n bne 1b"
        : "+r"(first_sum), "+r"(second_sum), "+r"(x), "+&r"(w), "+&r"(second), "=&r"(low), "=&r"(high), "=&r"(even)
        : "r"(end)
        : "r4", "r5", "r6", "r8", "cc", "memory");
    sums[0] = first_sum;
    sums[1] = second_sum;
    return second;
  }
#else
  static constexpr std::int32_t place(std::int32_t i) {
    return i;
  }

  template <std::int32_t Rows>
  [[gnu::always_inline]] static const std::int8_t* add(const std::int16_t* x, const std::int8_t* w, std::int32_t inputs,
                                                       std::int32_t (&sums)[Rows]) {
    const std::int8_t* const end = w + inputs;
    std::int32_t own[Rows] = {};
    do {
      each<8>([&](auto i) __attribute__((always_inline)) {
        const std::int32_t weight = w[i];
        each<Rows>([&](auto r) __attribute__((always_inline)) { own[r] += weight * x[8 * r + i]; });
      });
      w += 8;
      x += 8 * Rows;
    } while (w != end);
    each<Rows>([&](auto r) __attribute__((always_inline)) { sums[r] = own[r]; });
    return end;
  }
  [[gnu::always_inline]] static const std::int8_t* add_two(const std::int16_t* x, const std::int8_t* w,
                                                           std::int32_t inputs, std::int32_t (&sums)[2]) {
    const std::int8_t *second = w + inputs, *const end = second;
    std::int32_t own[2] = {};
    do {
      each<8>([&](auto i) __attribute__((always_inline)) {
        const std::int32_t activation = x[i];
        own[0] += w[i] * activation;
        own[1] += second[i] * activation;
      });
      w += 8;
      second += 8;
      x += 8;
    } while (w != end);
    sums[0] = own[0];
    sums[1] = own[1];
    return second;
  }
#endif

  static void multiply_one(const std::int16_t* x, const small_weights::matrix_type& w, const product_target& to) {
    const std::int8_t* weights = w.rows;
    for (std::int32_t output = 0; output < w.outputs; output += 2) {
      std::int32_t sums[2];
      weights = add_two(x, weights, w.inputs, sums);
      to.put(0, output, sums[0]);
      to.put(0, output + 1, sums[1]);
    }
  }

  template <std::int32_t Rows>
  static void multiply(const std::int16_t* x, const small_weights::matrix_type& w, const product_target& to) {
    const std::int8_t* weights = w.rows;
    for (std::int32_t output = 0; output < w.outputs; ++output) {
      std::int32_t sums[Rows];
      weights = add<Rows>(x, weights, w.inputs, sums);
      each<Rows>([&](auto r) __attribute__((always_inline)) { to.put(r, output, sums[r]); });
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
      for (std::int32_t r = 0; r < rows; ++r)
        each<4>([&](auto o) __attribute__((always_inline)) { to.put(r, output + o, sums[o][r]); });
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
