// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/sums.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/wide_number.hpp"

namespace espalier {

//! Concept of non-negative numbers, one for each token, that a token is drawn in proportion to: a row, or an expression
//! over rows that is never stored.
//!
//! Minimal definition
//!   size()        number of tokens
//!   operator[]    float or double, the same number each time. It is called in inner loops, so it must be cheap and
//!                 without branches
//! Optional
//!   within(begin, end, use)   calls use(w) with weights that equal these from begin to end, at most 1024 of them, and
//!                             are quicker to read there
//!   team()                    the threads that read the weights together, in step; without it, one thread reads alone
//! Models
//!   std::span, row_view, undrawn, residual, and the other rows that verifiers draw from
template <class WeightsT>
concept Weights = requires(const WeightsT& weights, std::size_t i) {
  { weights.size() } -> std::convertible_to<std::size_t>;
  { weights[i] } -> std::convertible_to<wide_number>;
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

// The sum of f(i) for 0 <= i < n, in one pass. No term goes through more than some hundred additions, which bounds the
// rounding error.
template <class FunctionT>
ESPALIER_HOST_DEVICE wide_number sum_of(std::size_t n, const FunctionT& f) {
  return alone().sums_of(n, f).of[0];
}

ESPALIER_EXEC_CHECK_DISABLE
template <Weights WeightsT>
ESPALIER_HOST_DEVICE wide_number mass(const WeightsT& weights) {
  return team_of(weights).sums_of(weights.size(), weights).of[0];
}

// The token drawn with u, a number uniform in [0, 1): the smallest i with u * sum < weights[0] + .. + weights[i]; -1 if
// all weights are zero. One pass gives the sums of the parts. Then only the part that the draw falls on is read again,
// for the sums of its groups, and then only one group of that part.
ESPALIER_EXEC_CHECK_DISABLE
template <Weights WeightsT>
ESPALIER_HOST_DEVICE std::int32_t categorical(const WeightsT& weights, wide_number u) {
  const auto team = team_of(weights);
  const parting cut(weights.size());
  const auto parts = team.parts_of(cut, weights);
  const wide_number r = u * parts.total;
  const landing part = team.land(r, 0, parts.of, 0, cut.count);
  if (part.at < 0) return -1;
  const auto in = static_cast<std::size_t>(part.at);
  const auto groups = team.groups_of(cut, in, weights);
  const landing group = team.land(r, part.before, groups.of, 0, part_groups);
  const auto g = static_cast<std::size_t>(group.at);
  return team.land(r, group.before, weights, cut.begin(in, g), cut.begin(in, g + 1)).at;
}

}  // namespace detail

}  // namespace espalier
