// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numbers>
#include <span>
#include <type_traits>

#include "espalier/core/error.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/sampling/exponential.hpp"

namespace espalier {

namespace detail {

inline double exp2_of_minus(double x) {
  return std::exp2(-x);
}

// The first index at which the row holds `value`.
//
// Pre         one number of the row equals `value`
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

// Raises numeric_error for the first logit that is NaN or plus infinity.
//
// Pre         there is one
template <class NumberT>
[[noreturn]] void raise_first_bad_logit(std::span<const NumberT> logits, row_origin row) {
  std::size_t t = 0;
  while (logits[t] < std::numeric_limits<NumberT>::infinity())
    ++t;
  raise_bad_logit(row, static_cast<std::int64_t>(t), static_cast<double>(logits[t]));
}

// The largest logit; minus infinity for an empty row. `is_bad` becomes true if a logit is NaN or plus infinity, else
// false.
template <class NumberT>
NumberT largest_logit(std::span<const NumberT> logits, bool& is_bad) {
  constexpr NumberT infinity = std::numeric_limits<NumberT>::infinity();
#if ESPALIER_HOSTED
  using bits_type = std::conditional_t<sizeof(NumberT) == 4, std::uint32_t, std::uint64_t>;
  NumberT best[mass_lanes];
  bits_type bad[mass_lanes] = {};
  std::fill(std::begin(best), std::end(best), -infinity);
  const auto take = [&](std::size_t l, NumberT x) {
    best[l] = best[l] < x ? x : best[l];
    bad[l] |= x < infinity ? bits_type{0} : ~bits_type{0};
  };
  std::size_t i = 0;
  for (; i + mass_lanes <= logits.size(); i += mass_lanes) {
    for (std::size_t l = 0; l < mass_lanes; ++l)
      take(l, logits[i + l]);
  }
  for (std::size_t l = 0; i < logits.size(); ++i, ++l)
    take(l, logits[i]);
  is_bad = *std::max_element(std::begin(bad), std::end(bad)) != 0;
  return *std::max_element(std::begin(best), std::end(best));
#else  // small machines have no vectors
  NumberT best = -infinity;
  is_bad = false;
  for (const NumberT x : logits) {
    if (x <= best) continue;
    if (!(x < infinity)) is_bad = true;
    best = x;
  }
  return best;
#endif
}

template <class NumberT>
NumberT max_logit(std::span<const NumberT> logits, row_origin row) {
  if (logits.empty()) raise_empty_row(row);
  bool is_bad = false;
  const NumberT largest = largest_logit(logits, is_bad);
  if (is_bad) raise_first_bad_logit(logits, row);
  if (largest == -std::numeric_limits<NumberT>::infinity()) raise_no_token(row);
  return largest;
}

// True if a token can be drawn from a row: max_logit() then raises no error.
template <class NumberT>
bool is_possible(std::span<const NumberT> logits) {
  bool is_bad = false;
  return largest_logit(logits, is_bad) > -std::numeric_limits<NumberT>::infinity() && !is_bad;
}

// Writes e^((logit - best) / temperature), which is 1 for the largest logit, and 0 in place of numbers below `least`;
// returns the sum. Equal logits give equal numbers, whatever their index, and minus infinity gives 0.
//
// Pre         best is the largest logit, and finite
template <class NumberT>
wide_number exponentials(std::span<const NumberT> logits, NumberT best, NumberT temperature, NumberT least,
                         std::span<NumberT> out) {
  // The cap keeps 0 * scale at 0 if the quotient overflows.
  const NumberT scale = (std::min)(std::numbers::log2e_v<NumberT> / temperature, (std::numeric_limits<NumberT>::max)());
  // The sum is added up in the same order as sum_of() over `out` would be.
  const parting cut(logits.size());
  wide_number totals[part_lanes] = {};
  for (std::size_t part = 0; part < cut.count; ++part) {
    wide_number total = 0;
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
  if (cut.count > 1) halve(totals, part_lanes);
  return totals[0];
}

template <class NumberT>
void divide(std::span<NumberT> row, wide_number total) {
  const auto inverse = static_cast<NumberT>(1 / total);
  for (NumberT& p : row)
    p *= inverse;
}

template <class NumberT>
void softmax(std::span<const NumberT> logits, NumberT temperature, std::span<NumberT> out, row_origin row) {
  divide(out, exponentials(logits, max_logit(logits, row), temperature, NumberT{0}, out));
}

}  // namespace detail

//! The largest logit of a row.
//!
//! Complexity  one pass
//! Errors      input_error for an empty row; numeric_error, which names the row, if a logit is NaN or plus infinity (it
//!             names this token, too), or if all logits are minus infinity: then no token can be drawn
inline float max_logit(std::span<const float> logits, row_origin row) {
  return detail::max_logit(logits, row);
}
inline double max_logit(std::span<const double> logits, row_origin row) {
  return detail::max_logit(logits, row);
}

//! The token with the largest logit; ties go to the lower id.
//!
//! Complexity  one pass, and a second one up to the token
//! Errors      as max_logit
inline token_id argmax(std::span<const float> logits, row_origin row) {
  return static_cast<token_id>(detail::find_first(logits, max_logit(logits, row)));
}
inline token_id argmax(std::span<const double> logits, row_origin row) {
  return static_cast<token_id>(detail::find_first(logits, max_logit(logits, row)));
}

//! Writes the probabilities of a row of logits at a temperature above 0. A logit of minus infinity gives a probability
//! of 0.
//!
//! Shapes      logits, out: [vocab]; they may be the same row
//! Complexity  three passes: the maximum, with the check; exponentials, with their sum; the division
//! Errors      as max_logit
inline void softmax(std::span<const float> logits, float temperature, std::span<float> out, row_origin row) {
  detail::softmax(logits, temperature, out, row);
}
inline void softmax(std::span<const double> logits, double temperature, std::span<double> out, row_origin row) {
  detail::softmax(logits, temperature, out, row);
}

}  // namespace espalier
