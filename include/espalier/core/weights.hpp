// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! Non-negative numbers, one a token, that a draw is made from: a row, or an expression over rows that is never stored.
//!
//! Minimal definition
//!   size()        how many
//!   operator[]    float or double, the same each time it is asked; cheap and free of branches, or there is a better way to sum
//! Optional
//!   within(begin, end, use)   use(w), where w has the same weights from begin to end, at most 1024 apart, and is quicker there
//!   team()                    the threads that read it together, all with the same weights at the same time; else one alone
//! Models
//!   std::span, row_view, undrawn, residual, and what else verifiers draw from
template <class WeightsT>
concept Weights = requires(const WeightsT& weights, std::size_t i) {
  { weights.size() } -> std::convertible_to<std::size_t>;
  { weights[i] } -> std::convertible_to<double>;
};

namespace detail {

template <class WeightsT>
ESPALIER_HOST_DEVICE auto team_of(const WeightsT& weights) {
  if constexpr (requires { weights.team(); }) {
    return weights.team();
  } else {
    return alone();
  }
}

// The sum of f(i) for 0 <= i < n: one pass, in blocks, so that the error is that of some hundred additions.
template <class FunctionT>
ESPALIER_HOST_DEVICE double sum_of(std::size_t n, const FunctionT& f) {
  return alone().sums_of(n, f).of[0];
}

ESPALIER_EXEC_CHECK_DISABLE
template <Weights WeightsT>
ESPALIER_HOST_DEVICE double mass(const WeightsT& weights) {
  return team_of(weights).sums_of(weights.size(), weights).of[0];
}

// Where r falls among weights that begin at the sum `before`.
struct landing {
  std::int32_t at = -1;  // -1 where all weights are zero
  double before = 0;     // the sum before it
};

// The first i with before + weights[begin] + .. + weights[i] > r; where rounding leaves none, the last that has weight.
template <class WeightsT>
ESPALIER_HOST_DEVICE landing land(double r, double before, const WeightsT& weights, std::size_t begin,
                                  std::size_t end) {
  landing found;
  for (std::size_t i = begin; i < end; ++i) {
    const auto weight = static_cast<double>(term(weights, i));
    if (!(weight > 0)) continue;
    found = {static_cast<std::int32_t>(i), before};
    before += weight;
    if (r < before) break;
  }
  return found;
}

// The smallest i with u * sum < weights[0] + .. + weights[i]: one pass, then a look at one part of it and at one group of that.
// -1 where all weights are zero.
ESPALIER_EXEC_CHECK_DISABLE
template <Weights WeightsT>
ESPALIER_HOST_DEVICE std::int32_t categorical(const WeightsT& weights, double u) {
  const auto team = team_of(weights);
  const parting cut(weights.size());
  const auto parts = team.parts_of(cut, weights);
  const double r = u * parts.total;
  const landing part = team.once([&] { return land(r, 0, parts.of, 0, cut.count); });
  if (part.at < 0) return -1;
  const auto in = static_cast<std::size_t>(part.at);
  const auto groups = team.groups_of(cut, in, weights);
  return team.once([&] {
    const landing group = land(r, part.before, groups.of, 0, part_groups);
    const auto g = static_cast<std::size_t>(group.at);
    return land(r, group.before, weights, cut.begin(in, g), cut.begin(in, g + 1)).at;
  });
}

}  // namespace detail

}  // namespace espalier
