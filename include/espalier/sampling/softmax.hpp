// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

namespace detail {

// Independent running values, so that a compiler may keep them in vector registers without reordering any sum. More of
// them than compilers unroll, for what is unrolled is not vectorised.
inline constexpr std::size_t lanes = 64;

// Finite numbers are those whose magnitude, read as an integer, is below this.
template <class NumberT>
inline constexpr auto infinite_magnitude = std::uint32_t{0x7F800000U};
template <>
inline constexpr auto infinite_magnitude<double> = std::uint64_t{0x7FF0000000000000U};

inline std::uint32_t magnitude_bits(float x) {
  return std::bit_cast<std::uint32_t>(x) & 0x7FFFFFFFU;
}
inline std::uint64_t magnitude_bits(double x) {
  return std::bit_cast<std::uint64_t>(x) & 0x7FFFFFFFFFFFFFFFU;
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
template <class NumberT>
std::size_t find_first(std::span<const NumberT> row, NumberT value) {
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

template <class NumberT>
double block_sum(std::span<const NumberT> values) {
  NumberT sum[lanes] = {};
  std::size_t i = 0;
  for (; i + lanes <= values.size(); i += lanes) {
    for (std::size_t l = 0; l < lanes; ++l)
      sum[l] += values[i + l];
  }
  for (std::size_t l = 0; i < values.size(); ++i, ++l)
    sum[l] += values[i];
  double total = 0;
  for (const NumberT s : sum)
    total += static_cast<double>(s);
  return total;
}

template <class NumberT>
NumberT max_logit(std::span<const NumberT> logits, std::int32_t row) {
  using magnitude_type = decltype(magnitude_bits(NumberT{}));
  if (logits.empty()) raise<input_error>("row ", row, " of the logits is empty.");
  NumberT best[lanes];
  magnitude_type largest[lanes] = {};
  for (NumberT& b : best)
    b = logits[0];
  std::size_t i = 0;
  for (; i + lanes <= logits.size(); i += lanes) {
    for (std::size_t l = 0; l < lanes; ++l) {
      const NumberT x = logits[i + l];
      const magnitude_type magnitude = magnitude_bits(x);
      best[l] = best[l] < x ? x : best[l];
      largest[l] = largest[l] < magnitude ? magnitude : largest[l];
    }
  }
  for (std::size_t l = 0; i < logits.size(); ++i, ++l) {
    best[l] = (std::max)(best[l], logits[i]);
    largest[l] = (std::max)(largest[l], magnitude_bits(logits[i]));
  }
  if (*std::max_element(std::begin(largest), std::end(largest)) >= infinite_magnitude<NumberT>) {
    std::size_t t = 0;
    while (magnitude_bits(logits[t]) < infinite_magnitude<NumberT>)
      ++t;
    raise<numeric_error>("the logit of token ", t, " in row ", row, " is ", logits[t],
                         "; logits must be finite. The model or its weights are damaged.");
  }
  return *std::max_element(std::begin(best), std::end(best));
}

template <class NumberT>
void softmax(std::span<const NumberT> logits, NumberT temperature, std::span<NumberT> out, std::int32_t row) {
  constexpr NumberT most = (std::numeric_limits<NumberT>::max)();
  const NumberT best = max_logit(logits, row);
  // The cap keeps 0 * scale at 0 where 1 / temperature overflows.
  const NumberT scale = 1 / temperature < most ? 1 / temperature : most;
  double total = 0;
  for (std::size_t first = 0; first < logits.size(); first += block) {
    const std::size_t n = (std::min)(block, logits.size() - first);
    for (std::size_t i = 0; i < n; ++i)
      out[first + i] = exp_of_nonpositive((logits[first + i] - best) * scale);
    total += block_sum<NumberT>(out.subspan(first, n));
  }
  const auto inverse = static_cast<NumberT>(1.0 / total);
  for (NumberT& p : out)
    p *= inverse;
}

}  // namespace detail

//! The largest logit of a row.
//!
//! Complexity  one pass
//! Errors      input_error for an empty row; numeric_error that names the row and the token where a logit is NaN or infinite
inline float max_logit(std::span<const float> logits, std::int32_t row) {
  return detail::max_logit(logits, row);
}
inline double max_logit(std::span<const double> logits, std::int32_t row) {
  return detail::max_logit(logits, row);
}

//! The token with the largest logit; ties go to the lower id.
//!
//! Complexity  one pass, and a second one up to the token
//! Errors      as max_logit
inline token_id argmax(std::span<const float> logits, std::int32_t row) {
  return static_cast<token_id>(detail::find_first(logits, max_logit(logits, row)));
}
inline token_id argmax(std::span<const double> logits, std::int32_t row) {
  return static_cast<token_id>(detail::find_first(logits, max_logit(logits, row)));
}

//! Probabilities of a row of logits at a temperature above 0.
//!
//! Shapes      logits, out: [vocab]; they may be the same row
//! Complexity  three passes; the sum is taken in double
//! Errors      as max_logit
inline void softmax(std::span<const float> logits, float temperature, std::span<float> out, std::int32_t row) {
  detail::softmax(logits, temperature, out, row);
}
inline void softmax(std::span<const double> logits, double temperature, std::span<double> out, std::int32_t row) {
  detail::softmax(logits, temperature, out, row);
}

}  // namespace espalier
