// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/option.hpp"
#include "espalier/cost/cost_curve.hpp"
#include "espalier/cost/cost_model.hpp"

namespace espalier {

//! Options of cost_aware and cost_aware_draws. draft_cost and row_cost stand in for a measured cost_model. The unit of
//! time is a plain round, that is, a pass of the target over one row.
struct cost_aware_options {
  std::int32_t budget = 32;     //!< drafted tokens of a round at most
  std::int32_t max_depth = 16;  //!< levels below the root that a model is asked for; runs of tokens may be longer
  double draft_cost = 0.1;      //!< cost of a draft pass of one row, in plain rounds; set it to 0 if no model drafts
  double row_cost = 0.05;       //!< cost of each further row, as a share of the cost of its pass with one row

  static constexpr void describe(auto see) {
    using self = cost_aware_options;
    see(option{"budget", &self::budget, "drafted tokens a round at most", 1, 1024});
    see(option{"max_depth", &self::max_depth, "levels below the root", 1, 64});
    see(option{"draft_cost", &self::draft_cost, "a draft pass in plain rounds, if not measured", 0, 100});
    see(option{"row_cost", &self::row_cost, "a further row over its pass's first, if not measured", 0, 100});
  }

  //! A cost_model made of draft_cost and row_cost. Its times are in plain rounds instead of seconds.
  //!
  //! Errors      option_error for options out of range
  cost_model costs() const {
    require_options(*this);
    return {{}, {}, {}, cost_curve::linear(draft_cost, draft_cost * row_cost), cost_curve::linear(1, row_cost)};
  }
};

}  // namespace espalier
