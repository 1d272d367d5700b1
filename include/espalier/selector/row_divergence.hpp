// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/sums.hpp"

namespace espalier {

namespace detail {

// Returns ln(max(p, 1e-10)) for a finite p. The relative error is below 1e-6, also near p = 1. It has no branches, so
// that loops over it vectorise; for that the maximum is taken of the bits, as integers.
ESPALIER_HOST_DEVICE inline float floored_log(float p) {
  constexpr std::int32_t root_of_half = 0x3F3504F3;
  constexpr std::int32_t floor = 0x2EDBE6FF;  // the bits of 1e-10
  const auto own_bits = __builtin_bit_cast(std::int32_t, p);
  const std::int32_t bits = own_bits > floor ? own_bits : floor;
  // p = 2^exponent * (1 + x), with 1 + x between the roots of 1/2 and of 2.
  const std::int32_t exponent = (bits - root_of_half) >> 23;
  const float x = __builtin_bit_cast(float, bits - (exponent << 23)) - 1.0F;
  float y = 7.0376836292e-2F;
  y = y * x - 1.1514610310e-1F;
  y = y * x + 1.1676998740e-1F;
  y = y * x - 1.2420140846e-1F;
  y = y * x + 1.4249322787e-1F;
  y = y * x - 1.6668057665e-1F;
  y = y * x + 2.0000714765e-1F;
  y = y * x - 2.4999993993e-1F;
  y = y * x + 3.3333331174e-1F;
  const float n = static_cast<float>(exponent);
  const float square = x * x;
  return (x + (y * x * square - 0.5F * square + n * -2.12194440e-4F)) + n * 0.693359375F;
}

// A block of probabilities and their logarithms.
struct logged_block {
  float p[mass_block];
  float log[mass_block];

  template <class NumberT>
  void take(const NumberT* row, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i)
      p[i] = static_cast<float>(row[i]);
    for (std::size_t i = 0; i < n; ++i)
      log[i] = floored_log(p[i]);
  }
};

}  // namespace detail

//! The entropies of two distributions over one vocabulary, and measures of how far they are from each other. Logarithms
//! are natural; the logarithm of a probability below 1e-10 is taken to be that of 1e-10.
struct row_divergence {
  double target_entropy = 0;   //!< H(p), nats
  double draft_entropy = 0;    //!< H(q), nats
  double target_to_draft = 0;  //!< KL(p || q), nats
  double draft_to_target = 0;  //!< KL(q || p), nats
  double distance = 0;         //!< L1 of p - q, at most 2

  //! Returns the divergences of the target's row p and the draft's row q, float or double.
  //!
  //! Shapes      p, q [vocab]
  //! Complexity  one pass that vectorises; relative error of a logarithm below 1e-6
  //! Errors      input_error for rows of different lengths
  template <class TargetT, class DraftT>
  static row_divergence of(std::span<const TargetT> p, std::span<const DraftT> q) {
    if (p.size() != q.size()) {
      raise<input_error>("a row of the target has ", p.size(), " tokens and one of the draft ", q.size(),
                         "; they must have the same vocabulary.");
    }
    detail::logged_block a, b;
    detail::sums<5> total;
    for (std::size_t begin = 0; begin < p.size(); begin += detail::mass_block) {
      const std::size_t n = (std::min)(detail::mass_block, p.size() - begin);
      a.take(p.data() + begin, n);
      b.take(q.data() + begin, n);
      total += detail::block_sums(
          detail::one_thread(), 0, n, [&](std::size_t i) { return a.p[i] * a.log[i]; },
          [&](std::size_t i) { return b.p[i] * b.log[i]; },
          [&](std::size_t i) { return a.p[i] * (a.log[i] - b.log[i]); },
          [&](std::size_t i) { return b.p[i] * (a.log[i] - b.log[i]); },
          [&](std::size_t i) { return std::abs(a.p[i] - b.p[i]); });
    }
    return {-total.of[0], -total.of[1], total.of[2], -total.of[3], total.of[4]};
  }
};

//! Returns the entropy of a row of probabilities, in nats, with logarithms floored as in row_divergence.
//!
//! Shapes      p [vocab]
//! Complexity  one pass that vectorises
template <class NumberT>
double row_entropy(std::span<const NumberT> p) {
  detail::logged_block a;
  double total = 0;
  for (std::size_t begin = 0; begin < p.size(); begin += detail::mass_block) {
    const std::size_t n = (std::min)(detail::mass_block, p.size() - begin);
    a.take(p.data() + begin, n);
    total += detail::block_mass([&](std::size_t i) { return a.p[i] * a.log[i]; }, 0, n);
  }
  return -total;
}

}  // namespace espalier
