// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
#include <immintrin.h>
#endif

#include "espalier/config.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/weights.hpp"

//! The layers of a selector's network: products of matrices with one vector, norms and activations.
namespace espalier::detail {

// Asks the CPU for the first cache line of every page. The forward passes of a round have driven the selector's weights
// out of the CPU's caches, and the CPU itself does not prefetch beyond the page that it reads.
inline void prefetch_pages(const void* from, std::size_t bytes) {
  constexpr std::size_t page = 4096;
  for (std::size_t i = 0; i < bytes; i += page)
    __builtin_prefetch(static_cast<const char*>(from) + i, 0, 2);
}

// Returns n rounded up to a multiple of `to`. Rows of matrices, and the inputs that they are multiplied with, are
// padded so; inputs with zeros.
constexpr std::size_t padded(std::size_t n, std::size_t to) {
  return (n + to - 1) / to * to;
}

// Returns the error function of x, within 5e-7. Source of the rational function: erf of float in Eigen and XLA.
ESPALIER_HOST_DEVICE inline float erf_of(float x) {
  const float low = x < -4.0F ? -4.0F : x;
  const float from = low > 4.0F ? 4.0F : low;
  const float z = from * from;
  float above = -2.72614225801306e-10F;
  above = above * z + 2.77068142495902e-08F;
  above = above * z - 2.10102402082508e-06F;
  above = above * z - 5.69250639462346e-05F;
  above = above * z - 7.34990630326855e-04F;
  above = above * z - 2.95459980854025e-03F;
  above = above * z - 1.60960333262415e-02F;
  float below = -1.45660718464996e-05F;
  below = below * z - 2.13374055278905e-04F;
  below = below * z - 1.68282697438203e-03F;
  below = below * z - 7.37332916720468e-03F;
  below = below * z - 1.42647390514189e-02F;
  return from * above / below;
}

// Returns GELU in its exact form, x (1 + erf(x / sqrt(2))) / 2.
ESPALIER_HOST_DEVICE inline float gelu(float x) {
  return 0.5F * x * (1.0F + erf_of(x * 0.70710678F));
}

// Applies GELU in place.
inline void gelu_of(float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    x[i] = gelu(x[i]);
}

// Returns (x - mean) / deviation, cut off at -8 and 8. NaN gives 8.
ESPALIER_HOST_DEVICE inline float standardised(float x, float mean, float deviation) {
  constexpr float most = 8;
  const float s = (x - mean) / deviation;
  const float high = s < most ? s : most;
  return high > -most ? high : -most;
}

// Computes out = (x - mean) / deviation, cut off at -8 and 8.
inline void standardise(const float* x, const float* mean, const float* deviation, std::size_t n, float* out) {
  for (std::size_t i = 0; i < n; ++i)
    out[i] = standardised(x[i], mean[i], deviation[i]);
}

// Applies layer norm in place: x = (x - mean of x) / sqrt(variance of x + 1e-5) * scale + bias.
inline void normalise_layer(float* x, const float* scale, const float* bias, std::size_t n) {
  const auto count = static_cast<double>(n);
  const auto mean = static_cast<float>(sum_of(n, [&](std::size_t i) { return x[i]; }) / count);
  for (std::size_t i = 0; i < n; ++i)
    x[i] -= mean;
  const double squares = sum_of(n, [&](std::size_t i) { return x[i] * x[i]; });
  const auto factor = static_cast<float>(1.0 / std::sqrt(squares / count + 1e-5));
  for (std::size_t i = 0; i < n; ++i)
    x[i] = x[i] * factor * scale[i] + bias[i];
}

// The largest byte of a vector that is rounded to bytes.
inline constexpr std::int32_t most_whole = 127;

// Returns x * factor, rounded to a whole number. Pre: the result is from -127 to 127.
ESPALIER_HOST_DEVICE inline std::int32_t whole_of(float x, float factor) {
  constexpr float above = static_cast<float>(most_whole + 1);
  return static_cast<std::int32_t>(x * factor + (above + 0.5F)) - (most_whole + 1);
}

// A vector rounded to bytes: number i is about scale * bytes[i], with bytes of -127 to 127.
struct whole_numbers {
  std::vector<std::int8_t> bytes;
  std::int32_t sum = 0;  // sum of the bytes
  float scale = 0;       // infinite or NaN if one of the numbers is, so that the products are, too

  // Rounds n numbers. Pre: there are at least n bytes.
  void set(const float* x, std::size_t n) {
    std::int32_t largest = 0;
    for (std::size_t i = 0; i < n; ++i)
      largest = (std::max)(largest, std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF);
    scale = std::bit_cast<float>(largest) / static_cast<float>(most_whole);
    const float factor = 1.0F / scale;
    if (!std::isfinite(scale) || !std::isfinite(factor)) {
      sum = 0;
      std::fill_n(bytes.data(), n, std::int8_t{0});
      return;
    }
    std::int8_t* to = bytes.data();
    std::int32_t total = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const std::int32_t whole = whole_of(x[i], factor);
      to[i] = static_cast<std::int8_t>(whole);
      total += whole;
    }
    sum = total;
  }
};

// The layout in memory of weights of 4 bits, -7 to 7. Each is held with 8 added, as 1 to 15: CPUs multiply unsigned
// bytes with signed ones, four products at a time. 16 rows lie together, 64 bytes for 8 inputs. A row has 4 of these
// bytes: its weights of the first four inputs in the low halves, its weights of the other four in the high halves.
inline constexpr std::size_t nibble_rows = 16, nibble_inputs = 8, nibble_bytes = nibble_rows * nibble_inputs / 2;
inline constexpr int nibble_most = 7, nibble_added = 8;

// Returns the scale of a row: its weights are scale times a whole number of -7 to 7. It is 0 if all weights are 0.
inline float nibble_scale(std::span<const float> weights) {
  float largest = 0;
  for (const float weight : weights)
    largest = (std::max)(largest, std::abs(weight));
  return largest / nibble_most;
}

// Returns the index of the byte that holds the weight of one row and input. n: inputs, padded.
ESPALIER_HOST_DEVICE inline std::size_t nibble_place(std::size_t n, std::size_t row, std::size_t i) {
  const std::size_t group = row / nibble_rows * (n / nibble_inputs) + i / nibble_inputs;
  return group * nibble_bytes + row % nibble_rows * 4 + i % 4;
}

// Sets the weight of one row and input. n: inputs, padded. Pre: -7 <= weight <= 7.
inline void set_nibble(std::uint8_t* weights, std::size_t n, std::size_t row, std::size_t i, int weight) {
  std::uint8_t& byte = weights[nibble_place(n, row, i)];
  const int whole = weight + nibble_added;
  byte = static_cast<std::uint8_t>(i % 8 < 4 ? (byte & 0xF0) | whole : (byte & 0x0F) | (whole << 4));
}

// Returns the weight of one row and input, -7 to 7; -8 where none was set.
ESPALIER_HOST_DEVICE inline std::int32_t nibble_at(const std::uint8_t* weights, std::size_t n, std::size_t row,
                                                   std::size_t i) {
  const std::int32_t byte = weights[nibble_place(n, row, i)];
  return (i % 8 < 4 ? byte & 15 : byte >> 4) - nibble_added;
}

// The running sums of 16 rows. add() multiplies the rows' weights for 8 inputs by those inputs, x [8], and adds the
// products to the sums.
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
struct nibble_sums {
  __m512i low = _mm512_setzero_si512(), high = _mm512_setzero_si512();

  void add(const std::uint8_t* weights, const std::int8_t* x) {
    const __m512i both = _mm512_loadu_si512(weights), mask = _mm512_set1_epi8(15);
    std::int32_t first, second;
    std::memcpy(&first, x, 4);
    std::memcpy(&second, x + 4, 4);
    low = _mm512_dpbusd_epi32(low, _mm512_and_si512(both, mask), _mm512_set1_epi32(first));
    high = _mm512_dpbusd_epi32(high, _mm512_and_si512(_mm512_srli_epi16(both, 4), mask), _mm512_set1_epi32(second));
  }
  void store(std::int32_t* to) const { _mm512_storeu_si512(to, _mm512_add_epi32(low, high)); }
};
#else
struct nibble_sums {
  static constexpr std::size_t parts = 4;                                           // vectors of 16 bytes
  typedef std::uint16_t halves __attribute__((vector_size(nibble_bytes / parts)));  // two for each row
  typedef std::int32_t wholes __attribute__((vector_size(nibble_bytes / parts)));

  wholes total[parts] = {};

  void add(const std::uint8_t* weights, const std::int8_t* x) {
    const halves a = pairs(x[0], x[2]), b = pairs(x[4], x[6]), c = pairs(x[1], x[3]), d = pairs(x[5], x[7]);
    for (std::size_t part = 0; part < parts; ++part) {
      halves both;
      std::memcpy(&both, weights + part * sizeof both, sizeof both);
      if constexpr (!little) both = both << 8 | both >> 8;
      // A sum of four products is at most 4 * 15 * 127 in magnitude, which fits in 16 signed bits.
      const halves four = (both & 15) * a + (both >> 4 & 15) * b + (both >> 8 & 15) * c + (both >> 12) * d;
      const wholes two = std::bit_cast<wholes>(four);
      total[part] += (two << 16 >> 16) + (two >> 16);
    }
  }
  void store(std::int32_t* to) const { std::memcpy(to, total, sizeof total); }

 private:
  static constexpr bool little = std::endian::native == std::endian::little;

  static halves pairs(std::int32_t first, std::int32_t second) {
    const wholes both = wholes{} + (little ? (first & 0xFFFF) | second * 65536 : (second & 0xFFFF) | first * 65536);
    return std::bit_cast<halves>(both);
  }
};
#endif

// Writes the products of 16 rows of weights with the first n numbers of a vector; n is padded, and at most 2^20. The 8
// that was added to each weight is taken off at the end, by means of the sum of the vector's bytes.
inline void multiply_nibbles(const std::uint8_t* weights, const whole_numbers& x, std::size_t n, std::int32_t* out) {
  nibble_sums total;
  for (std::size_t i = 0; i < n; i += nibble_inputs, weights += nibble_bytes)
    total.add(weights, x.bytes.data() + i);
  total.store(out);
  for (std::size_t r = 0; r < nibble_rows; ++r)
    out[r] -= nibble_added * x.sum;
}

// Returns the product of a row of n floats with a vector. It adds up block by block: the way in which sums over a whole
// vocabulary are made (core/sums.hpp) would cost more for rows as short as these.
inline float product(const float* row, const float* x, std::size_t n) {
  double total = 0;
  for (std::size_t begin = 0; begin < n; begin += mass_block)
    total += block_mass([&](std::size_t i) { return row[i] * x[i]; }, begin, (std::min)(n, begin + mass_block));
  return static_cast<float>(total);
}

}  // namespace espalier::detail
