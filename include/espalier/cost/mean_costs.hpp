// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/cost/cost_curve.hpp"
#include "espalier/cost/cost_model.hpp"

namespace espalier {

namespace detail {

inline cost_curve mean_curve(std::span<const cost_model> costs, cost_curve cost_model::*curve) {
  const cost_curve& first = costs.front().*curve;
  std::vector<double> seconds(first.seconds().size());
  for (const cost_model& c : costs) {
    const cost_curve& one = c.*curve;
    if (!std::ranges::equal(one.rows(), first.rows()) || !std::ranges::equal(one.contexts(), first.contexts())) {
      raise<input_error>(
          "the costs are for different numbers of rows or lengths of context; a mean needs the same ones.");
    }
    for (std::size_t i = 0; i < seconds.size(); ++i)
      seconds[i] += one.seconds()[i] / static_cast<double>(costs.size());
  }
  return cost_curve::of_grid({first.rows().begin(), first.rows().end()},
                             {first.contexts().begin(), first.contexts().end()}, std::move(seconds));
}

inline void require_same(const char* what, const std::string& one, const std::string& other) {
  if (one == other) return;
  raise<input_error>("the costs have no mean: the ", what, " of some is \"", one, "\" and of others \"", other, "\".");
}

}  // namespace detail

//! The mean of what the same passes cost at several times. Where others share the machine, what is measured within a
//! few seconds holds for those few seconds; what rounds cost in the long run is nearer to the mean of several
//! measurements.
//!
//! Complexity  O(costs * rows * contexts)
//! Law         within the grid, the mean of what each predicts; beyond it, at most that
//! Errors      input_error for no costs, for those of different hardware or models, and for different rows or contexts
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
