// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <numbers>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/sampling/exponential.hpp"

namespace espalier {

namespace detail {

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

inline double exp2_of_minus(double x) {
  return std::exp2(-x);
}

// The first index at which the row holds `value`. Pre: there is one.
template <class NumberT>
std::size_t find_first(std::span<const NumberT> row, NumberT value) {
  std::size_t i = 0;
  for (; i + mass_lanes <= row.size(); i += mass_lanes) {
    std::uint32_t found = 0;
    for (std::size_t l = 0; l < mass_lanes; ++l)
      found |= row[i + l] == value ? 1U : 0U;
    if (found != 0) break;
  }
  while (row[i] != value)
    ++i;
  return i;
}

template <class NumberT>
bool all_finite(const NumberT* numbers, std::size_t n) {
  std::uint32_t infinite = 0;
  for (std::size_t i = 0; i < n; ++i)
    infinite |= magnitude_bits(numbers[i]) < infinite_magnitude<NumberT> ? 0U : 1U;
  return infinite == 0;
}

// Pre: one of the logits is not finite.
template <class NumberT>
void raise_not_finite(std::span<const NumberT> logits, std::int32_t row) {
  std::size_t t = 0;
  while (magnitude_bits(logits[t]) < infinite_magnitude<NumberT>)
    ++t;
  raise<numeric_error>("the logit of token ", t, " in row ", row, " is ", logits[t],
                       "; logits must be finite. The model or its weights are damaged.");
}

template <class NumberT>
NumberT max_logit(std::span<const NumberT> logits, std::int32_t row) {
  if (logits.empty()) raise<input_error>("row ", row, " of the logits is empty.");
  NumberT best[mass_lanes];
  decltype(magnitude_bits(NumberT{})) largest[mass_lanes] = {};
  for (NumberT& b : best)
    b = logits[0];
  std::size_t i = 0;
  for (; i + mass_lanes <= logits.size(); i += mass_lanes) {
    for (std::size_t l = 0; l < mass_lanes; ++l) {
      const NumberT x = logits[i + l];
      const auto magnitude = magnitude_bits(x);
      best[l] = best[l] < x ? x : best[l];
      largest[l] = largest[l] < magnitude ? magnitude : largest[l];
    }
  }
  for (std::size_t l = 0; i < logits.size(); ++i, ++l) {
    best[l] = (std::max)(best[l], logits[i]);
    largest[l] = (std::max)(largest[l], magnitude_bits(logits[i]));
  }
  if (*std::max_element(std::begin(largest), std::end(largest)) >= infinite_magnitude<NumberT>)
    raise_not_finite(logits, row);
  return *std::max_element(std::begin(best), std::end(best));
}

// Writes e^((logit - best) / temperature), so 1 for the largest logit, and 0 for what would be below `least`; returns the
// sum. Equal logits give equal numbers, wherever they stand. Pre: the logits are finite, best is the largest.
template <class NumberT>
double exponentials(std::span<const NumberT> logits, NumberT best, NumberT temperature, NumberT least,
                    std::span<NumberT> out) {
  // The cap keeps 0 * scale at 0 where the quotient overflows.
  const NumberT scale = (std::min)(std::numbers::log2e_v<NumberT> / temperature, (std::numeric_limits<NumberT>::max)());
  // In the order of sum_of(out).
  const parting cut(logits.size());
  double totals[part_lanes] = {};
  for (std::size_t part = 0; part < cut.count; ++part) {
    double total = 0;
    for (std::size_t first = cut.begin(part); first < cut.end(part); first += mass_block) {
      const std::size_t n = (std::min)(mass_block, logits.size() - first);
      const NumberT* from = logits.data() + first;
      NumberT* to = out.data() + first;
      for (std::size_t i = 0; i < n; ++i) {
        const NumberT e = exp2_of_minus((best - from[i]) * scale);
        to[i] = e < least ? NumberT{0} : e;
      }
      total += block_mass([to](std::size_t i) { return to[i]; }, 0, n);
    }
    totals[part % part_lanes] += total;
  }
  halve(totals, part_lanes);
  return totals[0];
}

template <class NumberT>
void divide(std::span<NumberT> row, double total) {
  const auto inverse = static_cast<NumberT>(1.0 / total);
  for (NumberT& p : row)
    p *= inverse;
}

template <class NumberT>
void softmax(std::span<const NumberT> logits, NumberT temperature, std::span<NumberT> out, std::int32_t row) {
  divide(out, exponentials(logits, max_logit(logits, row), temperature, NumberT{0}, out));
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
//! Complexity  three passes: the maximum, with the check; exponentials, with their sum; the division. It needs as many,
//!             since a sum of exponentials cannot begin before the maximum is known, nor the division before the sum
//! Errors      as max_logit
inline void softmax(std::span<const float> logits, float temperature, std::span<float> out, std::int32_t row) {
  detail::softmax(logits, temperature, out, row);
}
inline void softmax(std::span<const double> logits, double temperature, std::span<double> out, std::int32_t row) {
  detail::softmax(logits, temperature, out, row);
}

}  // namespace espalier
