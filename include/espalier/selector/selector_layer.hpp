// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/core/sums.hpp"

//! The layers of a selector's network, for one row at a time. Loops that vectorise as they are.
namespace espalier::detail {

// Rows of matrices and their inputs are padded with zeros to whole groups of so many.
inline constexpr std::size_t layer_lanes = 64;

// Rows whose products are taken together: their sums need not wait for one another. Each layer has a multiple of them.
inline constexpr std::size_t layer_rows = 4;

// A round's passes leave nothing of a selector in the caches, and the processor's own foresight ends with each page: weights
// are asked for this many bytes before they are read, and one line of each page before all that.
inline constexpr std::size_t layer_ahead = 16384;
inline constexpr std::size_t layer_page = 4096;

// Asks for every `step` bytes of what begins `ahead` bytes beyond `from`; there need not be anything.
inline void fetch(const void* from, std::size_t ahead, std::size_t bytes, std::size_t step) {
  const std::uintptr_t first = reinterpret_cast<std::uintptr_t>(from) + ahead;
  for (std::size_t i = 0; i < bytes; i += step)
    __builtin_prefetch(reinterpret_cast<const void*>(first + i), 0, 2);
}

constexpr std::size_t padded(std::size_t n) {
  return (n + layer_lanes - 1) / layer_lanes * layer_lanes;
}

// Error below 5e-7. Source of the rational function: Eigen's and XLA's erf of float.
inline float erf_of(float x) {
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

// The exact form, x (1 + erf(x / sqrt(2))) / 2.
inline void gelu_of(float* x, std::size_t n) {
  for (std::size_t i = 0; i < n; ++i)
    x[i] = 0.5F * x[i] * (1.0F + erf_of(x[i] * 0.70710678F));
}

// out = (x - mean) / deviation, at most 8 either way.
inline void standardise(const float* x, const float* mean, const float* deviation, std::size_t n, float* out) {
  constexpr float most = 8;
  for (std::size_t i = 0; i < n; ++i) {
    const float s = (x[i] - mean[i]) / deviation[i];
    const float high = s < most ? s : most;
    out[i] = high > -most ? high : -most;
  }
}

// x = (x - mean of x) / sqrt(variance of x + 1e-5) * scale + bias
inline void normalise_layer(float* x, const float* scale, const float* bias, std::size_t n) {
  const auto count = static_cast<double>(n);
  double sum = 0, squares = 0;
  for (std::size_t i = 0; i < n; ++i)
    sum += static_cast<double>(x[i]);
  const auto mean = static_cast<float>(sum / count);
  for (std::size_t i = 0; i < n; ++i) {
    x[i] -= mean;
    squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  }
  const auto factor = static_cast<float>(1.0 / std::sqrt(squares / count + 1e-5));
  for (std::size_t i = 0; i < n; ++i)
    x[i] = x[i] * factor * scale[i] + bias[i];
}

// Writes numbers as whole numbers of 15 bits, so that sums of 1024 products with bytes are held by 32 bits; returns what they
// are to be multiplied by. That is not finite where a number is not, and then nothing is that is made of them.
inline float to_whole(const float* x, std::size_t n, std::int16_t* out) {
  constexpr std::int32_t most = 16383;
  std::int32_t largest = 0;
  for (std::size_t i = 0; i < n; ++i)
    largest = (std::max)(largest, std::bit_cast<std::int32_t>(x[i]) & 0x7FFFFFFF);
  const float scale = std::bit_cast<float>(largest) / static_cast<float>(most);
  const float factor = 1.0F / scale;
  if (!std::isfinite(scale) || !std::isfinite(factor)) {
    std::fill_n(out, n, std::int16_t{0});
    return scale;
  }
  constexpr float above = static_cast<float>(most + 1);
  for (std::size_t i = 0; i < n; ++i)
    out[i] = static_cast<std::int16_t>(static_cast<std::int32_t>(x[i] * factor + (above + 0.5F)) - (most + 1));
  return scale;
}

// Of layer_rows rows, one after the other, of n terms each, a multiple of layer_lanes.
inline std::array<float, layer_rows> products(const std::int8_t* rows, const std::int16_t* x, std::size_t n) {
  static_assert(layer_rows == 4);
  constexpr std::size_t held = 1024;
  const std::int8_t *a = rows, *b = a + n, *c = b + n, *d = c + n;
  std::array<float, layer_rows> total{};
  for (std::size_t begin = 0; begin < n; begin += held) {
    const std::size_t end = (std::min)(n, begin + held);
    std::int32_t of_a = 0, of_b = 0, of_c = 0, of_d = 0;
    for (std::size_t i = begin; i < end; ++i) {
      of_a += std::int16_t{a[i]} * x[i];
      of_b += std::int16_t{b[i]} * x[i];
      of_c += std::int16_t{c[i]} * x[i];
      of_d += std::int16_t{d[i]} * x[i];
    }
    total[0] += static_cast<float>(of_a);
    total[1] += static_cast<float>(of_b);
    total[2] += static_cast<float>(of_c);
    total[3] += static_cast<float>(of_d);
  }
  return total;
}

// Of n terms, a multiple of layer_lanes.
inline float product(const float* row, const float* x, std::size_t n) {
  double total = 0;
  for (std::size_t begin = 0; begin < n; begin += mass_block)
    total += block_mass([&](std::size_t i) { return row[i] * x[i]; }, begin, (std::min)(n, begin + mass_block));
  return static_cast<float>(total);
}

}  // namespace espalier::detail
