// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/error.hpp"
#include "espalier/cost/cost_curve.hpp"
#include "espalier/cost/cost_model.hpp"

namespace espalier {

//! Of cost_aware and cost_aware_draws. The two costs are for use without a measured cost_model: they count plain rounds, that
//! is, passes of the target over one row.
struct cost_aware_options {
  std::int32_t budget = 32;     //!< drafted tokens a round at most
  std::int32_t max_depth = 16;  //!< levels below the root
  double draft_cost = 0.1;      //!< of a draft pass of one row
  double row_cost = 0.05;       //!< of each further row, as a part of what its pass costs with one row

  //! Errors      option_error for a budget outside 1 to 1024, a depth outside 1 to 64, costs outside 0 to 100
  const cost_aware_options& checked() const {
    require_option("budget", budget, 1, 1024);
    require_option("max_depth", max_depth, 1, 64);
    require_option("draft_cost", draft_cost, 0.0, 100.0);
    require_option("row_cost", row_cost, 0.0, 100.0);
    return *this;
  }

  //! In plain rounds instead of seconds.
  cost_model costs() const {
    checked();
    return {{}, {}, {}, cost_curve::linear(draft_cost, draft_cost * row_cost), cost_curve::linear(1, row_cost)};
  }
};

}  // namespace espalier
