// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/cost/cost_curve.hpp"
#include "espalier/cost/cost_model.hpp"

namespace espalier {

namespace detail {

// Returns the mean of one curve over all costs, on the grid that this curve has in the first of the costs.
inline cost_curve mean_curve(std::span<const cost_model> costs, cost_curve cost_model::*curve) {
  const cost_curve& first = costs.front().*curve;
  std::vector<double> seconds(first.seconds().size());
  for (const cost_model& c : costs) {
    std::size_t i = 0;
    for (const std::int32_t rows : first.rows()) {
      for (const std::int32_t context : first.contexts())
        seconds[i++] += (c.*curve)(rows, context) / static_cast<double>(costs.size());
    }
  }
  return cost_curve::of_grid({first.rows().begin(), first.rows().end()},
                             {first.contexts().begin(), first.contexts().end()}, std::move(seconds));
}

// Checks that two names are the same; `what` says what they name.
//
// Errors      input_error that says what differs
inline void require_same(const char* what, const std::string& one, const std::string& other) {
  if (one == other) return;
  raise<input_error>("the costs have no mean: the ", what, " of some is \"", one, "\" and of others \"", other, "\".");
}

}  // namespace detail

//! The mean of several measurements of the same passes. On a machine that others use too, a measurement of a few
//! seconds holds for those few seconds only; the mean of several is nearer to the cost of rounds in the long run.
//!
//! Complexity  O(costs * rows * contexts) evaluations of curves
//! Law         the result has the grids of the first measurement; at a grid point it is the mean of the values that all
//!             measurements predict there
//! Errors      input_error for no costs, and for costs of different hardware or models
inline cost_model mean_costs(std::span<const cost_model> costs) {
  if (costs.empty()) raise<input_error>("there are no costs of which to take the mean.");
  const cost_model& first = costs.front();
  double opening = 0;
  for (const cost_model& c : costs) {
    detail::require_same("hardware", first.hardware, c.hardware);
    detail::require_same("target model", first.target, c.target);
    detail::require_same("draft model", first.draft, c.draft);
    opening += c.opening / static_cast<double>(costs.size());
  }
  return {first.hardware,
          first.target,
          first.draft,
          detail::mean_curve(costs, &cost_model::draft_pass),
          detail::mean_curve(costs, &cost_model::target_pass),
          opening};
}

}  // namespace espalier
