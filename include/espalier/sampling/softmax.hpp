// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

namespace detail {

// Independent running values, so that a compiler may keep them in vector registers without reordering any sum. More of
// them than compilers unroll, for what is unrolled is not vectorised.
inline constexpr std::size_t lanes = 64;

// Finite numbers are those whose magnitude, read as an integer, is below this.
inline constexpr std::uint32_t infinite_magnitude = 0x7F800000U;

inline std::uint32_t magnitude_bits(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU;
}

// exp(x) for x <= 0, branch-free so that loops over it vectorise: hence the clamp on integers. Relative error below 3e-7
// down to -87; 0 from -88 downwards, where the power of two is 0.
inline float exp_of_nonpositive(float x) {
  const float clamped = -std::bit_cast<float>((std::min)(magnitude_bits(x), std::bit_cast<std::uint32_t>(88.0F)));
  const auto n = static_cast<std::int32_t>(clamped * 1.44269504F - 0.5F);
  const auto nf = static_cast<float>(n);
  const float r = (clamped - nf * 0.693359375F) + nf * 2.12194440e-4F;
  float y = 1.9875691500e-4F;
  y = y * r + 1.3981999507e-3F;
  y = y * r + 8.3334519073e-3F;
  y = y * r + 4.1665795894e-2F;
  y = y * r + 1.6666665459e-1F;
  y = y * r + 5.0000001201e-1F;
  y = y * r * r + r + 1.0F;
  return y * std::bit_cast<float>((n + 127) << 23);
}

inline double exp_of_nonpositive(double x) {
  return std::exp(x);
}

// The first index at which the row holds `value`. Pre: there is one.
inline std::size_t find_first(std::span<const float> row, float value) {
  std::size_t i = 0;
  for (; i + lanes <= row.size(); i += lanes) {
    std::uint32_t found = 0;
    for (std::size_t l = 0; l < lanes; ++l)
      found |= row[i + l] == value ? 1U : 0U;
    if (found != 0) break;
  }
  while (row[i] != value)
    ++i;
  return i;
}

// Floats that are added up as such, before they join a sum in double.
inline constexpr std::size_t block = 1024;

inline double block_sum(std::span<const float> values) {
  float sum[lanes] = {};
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    for (std::size_t l = 0; l < lanes; ++l)
      sum[l] += values[i + l];
  }
  for (std::size_t l = 0; i < values.size(); ++i, ++l)
    sum[l] += values[i];
  double total = 0;
  for (const float s : sum)
    total += static_cast<double>(s);
  return total;
}

}  // namespace detail

//! The largest logit of a row.
//!
//! Complexity  one pass
//! Errors      input_error for an empty row; numeric_error that names the row and the token where a logit is NaN or infinite
inline float max_logit(std::span<const float> logits, std::int32_t row) {
  if (logits.empty()) raise<input_error>("row ", row, " of the logits is empty.");
  float best[detail::lanes];
  std::uint32_t largest[detail::lanes] = {};
  for (float& b : best)
    b = logits[0];
  std::size_t i = 0;
  for (; i + detail::lanes <= logits.size(); i += detail::lanes) {
    for (std::size_t l = 0; l < detail::lanes; ++l) {
      const float x = logits[i + l];
      const std::uint32_t magnitude = detail::magnitude_bits(x);
      best[l] = best[l] < x ? x : best[l];
      largest[l] = largest[l] < magnitude ? magnitude : largest[l];
    }
  }
  for (std::size_t l = 0; i < logits.size(); ++i, ++l) {
    best[l] = (std::max)(best[l], logits[i]);
    largest[l] = (std::max)(largest[l], detail::magnitude_bits(logits[i]));
  }
  if (*std::max_element(std::begin(largest), std::end(largest)) >= detail::infinite_magnitude) {
    std::size_t t = 0;
    while (detail::magnitude_bits(logits[t]) < detail::infinite_magnitude)
      ++t;
    raise<numeric_error>("the logit of token ", t, " in row ", row, " is ", logits[t],
                         "; logits must be finite. The model or its weights are damaged.");
  }
  return *std::max_element(std::begin(best), std::end(best));
}

//! The token with the largest logit; ties go to the lower id.
//!
//! Complexity  one pass, and a second one up to the token
//! Errors      as max_logit
inline token_id argmax(std::span<const float> logits, std::int32_t row) {
  return static_cast<token_id>(detail::find_first(logits, max_logit(logits, row)));
}

//! Probabilities of a row of logits at a temperature above 0.
//!
//! Shapes      logits, out: [vocab]; they may be the same row
//! Complexity  three passes; the sum is taken in double
//! Errors      as max_logit
inline void softmax(std::span<const float> logits, float temperature, std::span<float> out, std::int32_t row) {
  const float best = max_logit(logits, row);
  // The cap keeps 0 * scale at 0 where 1 / temperature overflows.
  const float scale = 1.0F / temperature < FLT_MAX ? 1.0F / temperature : FLT_MAX;
  double total = 0;
  for (std::size_t first = 0; first < logits.size(); first += detail::block) {
    const std::size_t n = (std::min)(detail::block, logits.size() - first);
    for (std::size_t i = 0; i < n; ++i)
      out[first + i] = detail::exp_of_nonpositive((logits[first + i] - best) * scale);
    total += detail::block_sum(out.subspan(first, n));
  }
  const auto inverse = static_cast<float>(1.0 / total);
  for (float& p : out)
    p *= inverse;
}

}  // namespace espalier
