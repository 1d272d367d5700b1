// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <bit>
#include <cfloat>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

namespace detail {

// Independent running values, so that a compiler may keep them in vector registers without reordering any sum.
inline constexpr std::size_t lanes = 16;

// exp(x) for x <= 0, branch-free so that loops over it vectorise. Relative error below 3e-7; 0 below -87.
inline float exp_of_nonpositive(float x) {
  const float clamped = x < -87.0F ? -87.0F : x;
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
  const float scale = std::bit_cast<float>((n + 127) << 23);
  return x < -87.0F ? 0.0F : y * scale;
}

inline double exp_of_nonpositive(double x) {
  return std::exp(x);
}

inline bool is_finite_bits(float x) {
  return (std::bit_cast<std::uint32_t>(x) & 0x7F800000U) != 0x7F800000U;
}

}  // namespace detail

//! The largest logit of a row.
//!
//! Complexity  one pass
//! Errors      input_error for an empty row; numeric_error that names the row and the token where a logit is NaN or infinite
inline float max_logit(std::span<const float> logits, std::int32_t row) {
  if (logits.empty()) raise<input_error>("row ", row, " of the logits is empty.");
  float best[detail::lanes];
  std::uint32_t bad[detail::lanes] = {};
  for (float& b : best)
    b = logits[0];
  std::size_t i = 0;
  for (; i + detail::lanes <= logits.size(); i += detail::lanes) {
    for (std::size_t l = 0; l < detail::lanes; ++l) {
      const float x = logits[i + l];
      best[l] = x > best[l] ? x : best[l];
      bad[l] |= detail::is_finite_bits(x) ? 0U : 1U;
    }
  }
  for (; i < logits.size(); ++i) {
    best[0] = logits[i] > best[0] ? logits[i] : best[0];
    bad[0] |= detail::is_finite_bits(logits[i]) ? 0U : 1U;
  }
  for (std::size_t l = 1; l < detail::lanes; ++l) {
    best[0] = best[l] > best[0] ? best[l] : best[0];
    bad[0] |= bad[l];
  }
  if (bad[0] != 0) {
    std::size_t t = 0;
    while (detail::is_finite_bits(logits[t]))
      ++t;
    raise<numeric_error>("the logit of token ", t, " in row ", row, " is ", logits[t],
                         "; logits must be finite. The model or its weights are damaged.");
  }
  return best[0];
}

//! The token with the largest logit; ties go to the lower id.
//!
//! Complexity  one pass, and a second one up to the token
//! Errors      as max_logit
inline token_id argmax(std::span<const float> logits, std::int32_t row) {
  const float best = max_logit(logits, row);
  std::size_t t = 0;
  while (logits[t] != best)
    ++t;
  return static_cast<token_id>(t);
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
  for (std::size_t i = 0; i < logits.size();) {
    const std::size_t end = logits.size() - i < 1024 ? logits.size() : i + 1024;
    float sum[detail::lanes] = {};
    for (; i + detail::lanes <= end; i += detail::lanes) {
      for (std::size_t l = 0; l < detail::lanes; ++l) {
        const float e = detail::exp_of_nonpositive((logits[i + l] - best) * scale);
        out[i + l] = e;
        sum[l] += e;
      }
    }
    for (; i < end; ++i) {
      out[i] = detail::exp_of_nonpositive((logits[i] - best) * scale);
      sum[0] += out[i];
    }
    for (const float s : sum)
      total += static_cast<double>(s);
  }
  const auto inverse = static_cast<float>(1.0 / total);
  for (float& p : out)
    p *= inverse;
}

}  // namespace espalier
