// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/round.cpp
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"

#if ESPALIER_HOSTED
#include "espalier/cost/cost_curve.hpp"
#endif

namespace espalier::detail {

#if ESPALIER_HOSTED

// A limit on drafted tokens: how many a pass of the target has time for, by a decoder's options time_budget and costs.
class time_budget {
 public:
  static constexpr std::int32_t no_limit = (std::numeric_limits<std::int32_t>::max)();

  // Takes a decoder's options. Errors: option_error for a time_budget without costs, or for costs without a time_budget
  template <class OptionsT>
  explicit time_budget(const OptionsT& options) : seconds_(options.time_budget) {
    require_option("time_budget", seconds_, 0.0, 1e6);
    if (seconds_ > 0 && !options.costs)
      raise<option_error>(
          "option time_budget is ", seconds_,
          " seconds, but no costs are given: by costs, as measure_costs makes them, a decoder knows how "
          "many rows fit.");
    if (seconds_ == 0 && options.costs)
      raise<option_error>(
          "costs are given without a time_budget: on the host a decoder needs them for that alone, and a policy has "
          "its "
          "own, as cost_aware.");
    if (options.costs) costs_ = options.costs->target_pass;
  }

  bool is_limited() const { return seconds_ > 0; }

  // Returns how many drafted tokens fit into a pass of n_texts texts, with `context` tokens each, beside n_rows rows
  // that are in the pass in any case; at most 2^20. Pre: is_limited()
  std::int32_t room(std::int32_t n_texts, std::int32_t n_rows, std::int32_t context) const {
    const std::int32_t fit = costs_.most_rows(seconds_, n_texts, n_rows + (1 << 20), context);
    return (std::max)(std::int32_t{0}, fit - n_rows);
  }

 private:
  double seconds_;
  cost_curve costs_ = cost_curve::linear(0, 0);
};

// Checks that a decoder of the device, which cannot keep to a time budget, is given none, and no costs for one.
// Errors: option_error
inline void refuse_time_budget(double seconds, bool has_costs = false) {
  if (seconds != 0 || has_costs)
    raise<option_error>("a decoder of the device keeps to no time_budget: give it none, and no costs for one.");
}

#else

// No limit: costs are for programs with a heap.
class time_budget {
 public:
  static constexpr std::int32_t no_limit = (std::numeric_limits<std::int32_t>::max)();

  template <class OptionsT>
  explicit time_budget(const OptionsT&) {}

  static constexpr bool is_limited() { return false; }
  static constexpr std::int32_t room(std::int32_t, std::int32_t, std::int32_t) { return 0; }
};

#endif

}  // namespace espalier::detail
