// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! Non-negative numbers, one a token, that a draw is made from: a row, or an expression over rows that is never stored.
//!
//! Minimal definition
//!   size()        how many
//!   operator[]    float or double, the same each time it is asked; cheap and free of branches, or there is a better way to sum
//! Optional
//!   mass(begin, end)   the sum of a stretch, where there is a better way than adding all of it up
//! Models
//!   std::span, undrawn, residual, and what else verifiers draw from
template <class WeightsT>
concept Weights = requires(const WeightsT& weights, std::size_t i) {
  { weights.size() } -> std::convertible_to<std::size_t>;
  { weights[i] } -> std::convertible_to<double>;
};

namespace detail {

// Weights that are added up as they are, before they join a sum in double; and the running sums they are kept in: more
// than compilers unroll, for what is unrolled is not vectorised.
inline constexpr std::size_t mass_block = 1024;
inline constexpr std::size_t mass_lanes = 64;

// The sum of f(i) for begin <= i < end, at most mass_block apart.
template <class FunctionT>
ESPALIER_HOST_DEVICE double block_mass(const FunctionT& f, std::size_t begin, std::size_t end) {
  using number = std::remove_cvref_t<decltype(f(begin))>;
  number sum[mass_lanes] = {};
  std::size_t i = begin;
  for (; i + mass_lanes <= end; i += mass_lanes) {
    for (std::size_t l = 0; l < mass_lanes; ++l)
      sum[l] += f(i + l);
  }
  for (std::size_t l = 0; i < end; ++i, ++l)
    sum[l] += f(i);
  // Halved while that fills vectors.
  for (std::size_t half = mass_lanes / 2; half >= 8; half /= 2) {
    for (std::size_t l = 0; l < half; ++l)
      sum[l] += sum[l + half];
  }
  double total = 0;
  for (std::size_t l = 0; l < 8; ++l)
    total += static_cast<double>(sum[l]);
  return total;
}

// The sum of f(i) for 0 <= i < n: one pass, in blocks, so that the error is that of some hundred additions.
template <class FunctionT>
ESPALIER_HOST_DEVICE double sum_of(std::size_t n, const FunctionT& f) {
  double total = 0;
  for (std::size_t i = 0; i < n; i += mass_block)
    total += block_mass(f, i, n - i < mass_block ? n : i + mass_block);
  return total;
}

// The sum of the weights from `begin` to before `end`. Weights that know it better have a member mass(begin, end).
template <Weights WeightsT>
ESPALIER_HOST_DEVICE double mass(const WeightsT& weights, std::size_t begin, std::size_t end) {
  if constexpr (requires { weights.mass(begin, end); }) {
    return weights.mass(begin, end);
  } else {
    return sum_of(end - begin, [&](std::size_t i) { return weights[begin + i]; });
  }
}

template <Weights WeightsT>
ESPALIER_HOST_DEVICE double mass(const WeightsT& weights) {
  return mass(weights, 0, weights.size());
}

// The smallest i with weights[i] > 0 and u * sum < weights[0] + .. + weights[i]; if rounding leaves none, the last with
// weight before the block's end. -1 where all weights are zero. One pass, and a look at one block again.
template <Weights WeightsT>
ESPALIER_HOST_DEVICE std::int32_t categorical(const WeightsT& weights, double u) {
  constexpr std::size_t max_blocks = 256;
  const std::size_t n = weights.size();
  const std::size_t stretch = (n / mass_block / max_blocks + 1) * mass_block;
  double sums[max_blocks];
  double total = 0;
  std::size_t n_sums = 0;
  for (std::size_t i = 0; i < n; i += stretch) {
    const std::size_t end = n - i < stretch ? n : i + stretch;
    sums[n_sums] = mass(weights, i, end);
    total += sums[n_sums++];
  }
  const double r = u * total;
  double sum = 0;
  std::int32_t last = -1;
  for (std::size_t b = 0; b < n_sums; ++b) {
    if (r >= sum + sums[b] && b + 1 < n_sums) {
      sum += sums[b];
      continue;
    }
    const std::size_t end = n - b * stretch < stretch ? n : (b + 1) * stretch;
    for (std::size_t i = b * stretch; i < end; ++i) {
      if (!(weights[i] > 0)) continue;
      sum += static_cast<double>(weights[i]);
      last = static_cast<std::int32_t>(i);
      if (r < sum) return last;
    }
    if (last >= 0) return last;
  }
  for (std::size_t i = n; i-- > 0;) {
    if (weights[i] > 0) return static_cast<std::int32_t>(i);
  }
  return -1;
}

}  // namespace detail

}  // namespace espalier
