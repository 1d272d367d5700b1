// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/small/small_llama.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "espalier/config.hpp"
#include "espalier/model/small/small_weights.hpp"

//! Products of rows of activations, rounded to 8 bits with a scale for each row, with weights of 8 bits. Sums are
//! integers and exact, so the sums of a row do not depend on the rows next to it.
namespace espalier::detail {

// Calls body(0) to body(N - 1) with constants, so that arrays they index may stay in registers.
template <std::int32_t N, class BodyT>
[[gnu::always_inline]] inline void each(BodyT&& body) {
  [&]<std::int32_t... Index>(std::integer_sequence<std::int32_t, Index...>) __attribute__((always_inline)) {
    (body(std::integral_constant<std::int32_t, Index>()), ...);
  }
  (std::make_integer_sequence<std::int32_t, N>());
}

// The rounding of a row to integers from -127 to 127: multiplication by `inverse`, which `scale` undoes. The integers'
// magnitudes add up to `total` at most.
struct rounding {
  float inverse, scale, total;

  rounding(const float* x, std::int32_t n) {
    float greatest = 0, sum = 0;
    for (std::int32_t i = 0; i < n; i += 4) {
      each<4>([&](auto l) __attribute__((always_inline)) {
        const float magnitude = __builtin_fabsf(x[i + l]);
        greatest = (std::max)(greatest, magnitude);
        sum += magnitude;
      });
    }
    inverse = greatest > 0 ? 127.0F / greatest : 0.0F;
    scale = greatest / 127.0F;
    total = sum * inverse * 1.01F + 0.5F * static_cast<float>(n);
  }

  // The bits of the float 12582912, of which the low 16 are 0. of() returns zero + the rounded integer.
  static constexpr std::int32_t zero = 0x4B400000;
  [[gnu::always_inline]] static std::int32_t of(float x, float inverse) {
    // Adding this number rounds to an integer, and leaves it in the low bits.
    return __builtin_bit_cast(std::int32_t, x * inverse + 12582912.0F);
  }
};

// The output of a product: [rows][outputs] floats, to which sums are written or added after the scales of rows and
// weights are applied.
struct product_target {
  float* out;
  const float* row_scales;
  const float* weight_scales;
  std::int32_t outputs;
  bool adds;

  // Writes or adds the sums of the first `rows` rows to the outputs from number `output` on.
  template <std::int32_t Rows, std::int32_t Outputs>
  [[gnu::always_inline]] void put(std::int32_t output, const std::int32_t (&sums)[Outputs][Rows],
                                  std::int32_t rows = Rows) const {
    float* to = out + output;
    float of_weights[Outputs];
    each<Outputs>([&](auto o) __attribute__((always_inline)) { of_weights[o] = weight_scales[output + o]; });
    each<Rows>([&](auto r) __attribute__((always_inline)) {
      if (r >= rows) return;
      const float scale = row_scales[r];
      each<Outputs>([&](auto o) __attribute__((always_inline)) {
        const float value = static_cast<float>(sums[o][r]) * (scale * of_weights[o]);
        to[o] = adds ? to[o] + value : value;
      });
      to += outputs;
    });
  }
};

// Products for machines of 32 bits: one product for each instruction, or two if there are DSP instructions. A weight is
// read once for up to three rows.
class word_products {
 public:
  static constexpr std::int32_t most = 3;
  static constexpr std::size_t bytes(std::int32_t rows, std::int32_t inputs) {
    return sizeof(std::int16_t) * static_cast<std::size_t>(rows) * static_cast<std::size_t>(inputs);
  }
  // Returns the number of rows of the next block if `left` rows are left.
  static constexpr std::int32_t block(std::int32_t left) { return left == 4 ? 2 : (std::min)(left, most); }

  // Rounds rows, and writes their scales.
  //
  // Shapes      memory: [inputs / 4][rows][4]
  static void store(void* memory, std::int32_t rows, const float* from, std::int32_t inputs, float* scales) {
    auto* const x = static_cast<std::int16_t*>(memory);
    for (std::int32_t row = 0; row < rows; ++row, from += inputs) {
      const rounding round(from, inputs);
      scales[row] = round.scale;
      std::int16_t* to = x + 4 * row;
      for (std::int32_t i = 0; i < inputs; i += 4, to += 4 * rows)
        each<4>([&](auto l) __attribute__((always_inline)) {
          to[place(l)] = static_cast<std::int16_t>(rounding::of(from[i + l], round.inverse));
        });
    }
  }

  static void multiply(const void* memory, std::int32_t rows, const small_weights::matrix_type& w,
                       const product_target& to) {
    const auto* const x = static_cast<const std::int16_t*>(memory);
    rows == 1 ? multiply<1, 2>(x, w, to) : rows == 2 ? multiply<2, 1>(x, w, to) : multiply<3, 1>(x, w, to);
  }

 private:
  template <std::int32_t Rows, std::int32_t Outputs>
  static void multiply(const std::int16_t* x, const small_weights::matrix_type& w, const product_target& to) {
    const std::int8_t* weights = w.rows;
    for (std::int32_t output = 0; output < w.outputs; output += Outputs, weights += Outputs * w.inputs) {
      std::int32_t sums[Outputs][Rows];
      add_up(x, weights, w.inputs, sums);
      to.put(output, sums);
    }
  }

#if ESPALIER_DSP_ASSEMBLY
  // Returns the position of input i among its four: sxtb16 takes the weights in bytes 0 and 2 of a word together, then
  // those in bytes 1 and 3.
  static constexpr std::int32_t place(std::int32_t i) {
    return i == 1 ? 2 : i == 2 ? 1 : i;
  }

  // The three add_up() load four weights at a time, and the inputs of all rows by one instruction. They take 1.4, 2.3
  // and 2.8 instructions for each weight with one, two and three rows. A compiler keeps less in registers, and needs
  // about twice as many instructions.
  [[gnu::always_inline]] static void add_up(const std::int16_t* x, const std::int8_t* weights, std::int32_t inputs,
                                            std::int32_t (&sums)[2][1]) {
    const std::int8_t* const end = weights + inputs;
    const std::int8_t* other = end;
    std::int32_t first = 0, second = 0, odd, even;
    asm volatile(
        "1:\n"
        "ldmia %[x]!, {r4, r5, r6, r8}\n"
        "ldr %[odd], [%[w]], #4\n"
        "sxtb16 %[even], %[odd]\n sxtb16 %[odd], %[odd], ror #8\n"
        "smlad %[first], %[even], r4, %[first]\n smlad %[first], %[odd], r5, %[first]\n"
        "ldr %[odd], [%[other]], #4\n"
        "sxtb16 %[even], %[odd]\n sxtb16 %[odd], %[odd], ror #8\n"
        "smlad %[second], %[even], r4, %[second]\n smlad %[second], %[odd], r5, %[second]\n"
        "ldr %[odd], [%[w]], #4\n"
        "sxtb16 %[even], %[odd]\n sxtb16 %[odd], %[odd], ror #8\n"
        "smlad %[first], %[even], r6, %[first]\n smlad %[first], %[odd], r8, %[first]\n"
        "ldr %[odd], [%[other]], #4\n"
        "sxtb16 %[even], %[odd]\n sxtb16 %[odd], %[odd], ror #8\n"
        "smlad %[second], %[even], r6, %[second]\n smlad %[second], %[odd], r8, %[second]\n"
        "cmp %[w], %[end]\n"
        "bne 1b"
        : [x] "+&r"(x), [w] "+&r"(weights), [other] "+&r"(other), [first] "+&r"(first), [second] "+&r"(second),
          [odd] "=&r"(odd), [even] "=&r"(even)
        : [end] "r"(end)
        : "r4", "r5", "r6", "r8", "cc", "memory");
    sums[0][0] = first;
    sums[1][0] = second;
  }

  [[gnu::always_inline]] static void add_up(const std::int16_t* x, const std::int8_t* weights, std::int32_t inputs,
                                            std::int32_t (&sums)[1][2]) {
    const std::int8_t* const end = weights + inputs;
    std::int32_t first = 0, second = 0, odd, even;
    asm volatile(
        "1:\n"
        ".rept 2\n"
        "ldr %[odd], [%[w]], #4\n"
        "ldmia %[x]!, {r4, r5, r6, r8}\n"
        "sxtb16 %[even], %[odd]\n sxtb16 %[odd], %[odd], ror #8\n"
        "smlad %[first], %[even], r4, %[first]\n smlad %[first], %[odd], r5, %[first]\n"
        "smlad %[second], %[even], r6, %[second]\n smlad %[second], %[odd], r8, %[second]\n"
        ".endr\n"
        "cmp %[w], %[end]\n"
        "bne 1b"
        : [x] "+&r"(x), [w] "+&r"(weights), [first] "+&r"(first), [second] "+&r"(second), [odd] "=&r"(odd),
          [even] "=&r"(even)
        : [end] "r"(end)
        : "r4", "r5", "r6", "r8", "cc", "memory");
    sums[0][0] = first;
    sums[0][1] = second;
  }

  [[gnu::always_inline]] static void add_up(const std::int16_t* x, const std::int8_t* weights, std::int32_t inputs,
                                            std::int32_t (&sums)[1][3]) {
    const std::int8_t* const end = weights + inputs;
    std::int32_t first = 0, second = 0, third = 0, odd, even;
    asm volatile(
        "1:\n"
        ".rept 2\n"
        "ldr %[odd], [%[w]], #4\n"
        "ldmia %[x]!, {r4, r5, r6, r8, r9, r10}\n"
        "sxtb16 %[even], %[odd]\n sxtb16 %[odd], %[odd], ror #8\n"
        "smlad %[first], %[even], r4, %[first]\n smlad %[first], %[odd], r5, %[first]\n"
        "smlad %[second], %[even], r6, %[second]\n smlad %[second], %[odd], r8, %[second]\n"
        "smlad %[third], %[even], r9, %[third]\n smlad %[third], %[odd], r10, %[third]\n"
        ".endr\n"
        "cmp %[w], %[end]\n"
        "bne 1b"
        : [x] "+&r"(x), [w] "+&r"(weights), [first] "+&r"(first), [second] "+&r"(second), [third] "+&r"(third),
          [odd] "=&r"(odd), [even] "=&r"(even)
        : [end] "r"(end)
        : "r4", "r5", "r6", "r8", "r9", "r10", "cc", "memory");
    sums[0][0] = first;
    sums[0][1] = second;
    sums[0][2] = third;
  }
#else
  static constexpr std::int32_t place(std::int32_t i) {
    return i;
  }

  template <std::int32_t Rows, std::int32_t Outputs>
  [[gnu::always_inline]] static void add_up(const std::int16_t* x, const std::int8_t* weights, std::int32_t inputs,
                                            std::int32_t (&sums)[Outputs][Rows]) {
    std::int32_t found[Outputs][Rows] = {};  // local, so that they stay in registers
    for (std::int32_t k = 0; k < inputs; k += 4, x += 4 * Rows) {
      each<4>([&](auto l) __attribute__((always_inline)) {
        each<Outputs>([&](auto o) __attribute__((always_inline)) {
          const std::int32_t weight = weights[o * inputs + k + l];
          each<Rows>([&](auto r) __attribute__((always_inline)) { found[o][r] += weight * x[4 * r + l]; });
        });
      });
    }
    each<Outputs * Rows>([&](auto i)
                             __attribute__((always_inline)) { sums[i / Rows][i % Rows] = found[i / Rows][i % Rows]; });
  }
#endif
};

// Products for machines of 64 bits: one multiplication for three rows, whose activations are packed into one number, 21
// bits apart. The sum of a row fits 21 bits if the magnitudes of the row's activations add up to less than 2^13, as
// in ordinary rows. Otherwise sums are taken over 64 activations at a time.
class packed_products {
 public:
  static constexpr std::int32_t most = 6;
  static constexpr std::size_t bytes(std::int32_t rows, std::int32_t inputs) {
    return sizeof(std::int64_t) * (1 + static_cast<std::size_t>((rows + 2) / 3) * static_cast<std::size_t>(inputs));
  }
  static constexpr std::int32_t block(std::int32_t left) { return (std::min)(left, most); }

  // Rounds rows, and writes their scales.
  //
  // Shapes      memory: the number of inputs that a sum has room for, then packs of three rows, [inputs][packs]; the
  //             first row of a pack is in the low bits
  static void store(void* memory, std::int32_t rows, const float* from, std::int32_t inputs, float* scales) {
    auto* const run = static_cast<std::int64_t*>(memory);
    *run = inputs;
    const std::int32_t packs = (rows + 2) / 3;
    for (std::int32_t pack = 0; pack < packs; ++pack) {
      const float* x[3];
      float inverse[3];  // 0 for a row that does not exist
      each<3>([&](auto r) __attribute__((always_inline)) {
        const std::int32_t row = 3 * pack + r;
        const bool is_row = row < rows;
        x[r] = from + (is_row ? row : 0) * inputs;
        const rounding round(x[r], is_row ? inputs : 0);
        inverse[r] = round.inverse;
        if (is_row) scales[row] = round.scale;
        if (!(round.total < 8191.0F)) *run = shortest_run;
      });
      std::int64_t* to = run + 1 + pack;
      for (std::int32_t i = 0; i < inputs; i += 4) {
        each<4>([&](auto l) __attribute__((always_inline)) {
          if (rows == 1) {
            *to = rounding::of(x[0][i + l], inverse[0]) - rounding::zero;
          } else {
            constexpr std::uint64_t zeros = ((std::uint64_t{1} << 2 * field) + (1U << field) + 1U) * rounding::zero;
            std::uint64_t packed = 0;
            each<3>([&](auto r) __attribute__((always_inline)) {
              packed += static_cast<std::uint64_t>(rounding::of(x[r][i + l], inverse[r])) << (field * r);
            });
            *to = static_cast<std::int64_t>(packed - zeros);
          }
          to += packs;
        });
      }
    }
  }

  static void multiply(const void* memory, std::int32_t rows, const small_weights::matrix_type& w,
                       const product_target& to) {
    const auto* const x = static_cast<const std::int64_t*>(memory) + 1;
    if (rows == 1) return multiply<1, 1>(x, rows, w, to);
    const auto run = static_cast<std::int32_t>(x[-1]);
    if (run < w.inputs)
      return rows <= 3 ? multiply_in_runs<1>(x, run, rows, w, to) : multiply_in_runs<2>(x, run, rows, w, to);
    rows <= 3 ? multiply<1, 3>(x, rows, w, to) : multiply<2, 3>(x, rows, w, to);
  }

 private:
  static constexpr std::int32_t field = 21;
  static constexpr std::int32_t shortest_run = 64;

  template <std::int32_t Packs, std::int32_t Fields>
  static void multiply(const std::int64_t* x, std::int32_t rows, const small_weights::matrix_type& w,
                       const product_target& to) {
    const std::int8_t* weights = w.rows;
    for (std::int32_t output = 0; output < w.outputs; output += 4, weights += 4 * w.inputs) {
      std::int32_t sums[4][Packs * Fields];
      add_up<Packs>(x, weights, w.inputs, w.inputs, sums);
      to.put(output, sums, rows);
    }
  }

  // Multiplies in parts of `run` inputs, for sums that have room for no more.
  template <std::int32_t Packs>
  static void multiply_in_runs(const std::int64_t* x, std::int32_t run, std::int32_t rows,
                               const small_weights::matrix_type& w, const product_target& to) {
    const std::int8_t* weights = w.rows;
    for (std::int32_t output = 0; output < w.outputs; output += 4, weights += 4 * w.inputs) {
      std::int32_t sums[4][Packs * 3] = {};
      for (std::int32_t k = 0; k < w.inputs; k += run) {
        std::int32_t part[4][Packs * 3];
        add_up<Packs>(x + k * Packs, weights + k, w.inputs, (std::min)(w.inputs - k, run), part);
        each<12 * Packs>([&](auto i) __attribute__((always_inline)) {
          sums[i / (Packs * 3)][i % (Packs * 3)] += part[i / (Packs * 3)][i % (Packs * 3)];
        });
      }
      to.put(output, sums, rows);
    }
  }

  // Adds up the products of n inputs and their weights for four outputs, whose rows of weights are `stride` apart.
  template <std::int32_t Packs, std::int32_t Sums>
  [[gnu::always_inline]] static void add_up(const std::int64_t* x, const std::int8_t* first, std::int32_t stride,
                                            std::int32_t n, std::int32_t (&sums)[4][Sums]) {
    const std::int8_t* weights[4];
    each<4>([&](auto o) __attribute__((always_inline)) { weights[o] = first + std::ptrdiff_t{o} * stride; });
    const std::int8_t* const end = first + n;
    std::int64_t packed[4][Packs] = {};
    do {
      each<8>([&](auto i) __attribute__((always_inline)) {
        std::int64_t rows_of_input[Packs];
        each<Packs>([&](auto p) __attribute__((always_inline)) { rows_of_input[p] = x[i * Packs + p]; });
        each<4>([&](auto o) __attribute__((always_inline)) {
          const std::int64_t weight = weights[o][i];
          each<Packs>([&](auto p) __attribute__((always_inline)) {
            packed[o][p] += weight * rows_of_input[p];
            // keeps the compiler to one input after the other, so that each is loaded once
            asm volatile("" : "+r"(packed[o][p]));
          });
        });
      });
      each<4>([&](auto o) __attribute__((always_inline)) { weights[o] += 8; });
      x += 8 * Packs;
    } while (weights[0] != end);
    each<4 * Packs>([&](auto i) __attribute__((always_inline)) {
      unpack<Sums / Packs>(packed[i / Packs][i % Packs], &sums[i / Packs][i % Packs * (Sums / Packs)]);
    });
  }

  template <std::int32_t Fields>
  [[gnu::always_inline]] static void unpack(std::int64_t packed, std::int32_t* sums) {
    each<Fields - 1>([&](auto f) __attribute__((always_inline)) {
      // The lowest sum, with its sign. A negative one has borrowed from the next sum: subtracting it undoes this.
      const std::int64_t low =
          static_cast<std::int64_t>(static_cast<std::uint64_t>(packed) << (64 - field)) >> (64 - field);
      sums[f] = static_cast<std::int32_t>(low);
      packed = (packed - low) >> field;
    });
    sums[Fields - 1] = static_cast<std::int32_t>(packed);
  }
};

using machine_products = std::conditional_t<sizeof(void*) == 8, packed_products, word_products>;

// Computes y = W x for rows of floats, or y += W x if `adds`.
//
// Shapes      x [rows][inputs]; y [rows][outputs]; memory: ProductsT::bytes(most, inputs)
template <class ProductsT = machine_products>
void multiply_rows(const small_weights::matrix_type& w, const float* x, std::int32_t rows, float* y, bool adds,
                   void* memory) {
  for (std::int32_t first = 0; first < rows;) {
    const std::int32_t n = ProductsT::block(rows - first);
    float scales[ProductsT::most];
    ProductsT::store(memory, n, x + static_cast<std::ptrdiff_t>(first) * w.inputs, w.inputs, scales);
    ProductsT::multiply(memory, n, w,
                        {y + static_cast<std::ptrdiff_t>(first) * w.outputs, scales, w.scales, w.outputs, adds});
    first += n;
  }
}

}  // namespace espalier::detail
