// SPDX-License-Identifier: BSL-1.0
// Tested by tests/tree_policy/chain.cpp
#pragma once

#include <cfloat>

#include "espalier/config.hpp"
#include "espalier/sampling/exponential.hpp"

namespace espalier::detail {

// The log-probability of one token in double, never above 0. Sums of it along paths are compared with each other, so
// host and device get the same bits.
//
// Pre         probability > 0
ESPALIER_HOST_DEVICE inline double path_log_prob_of(double probability) {
  const double log_prob = log_of(probability < DBL_MIN ? DBL_MIN : probability);
  return log_prob < 0 ? log_prob : 0;
}

// The log-probability of a token, as a tree keeps it. Trees are grown by it, so host and device get the same bits.
//
// Pre         probability > 0
ESPALIER_HOST_DEVICE inline float log_prob_of(double probability) {
  return static_cast<float>(log_of(probability < DBL_MIN ? DBL_MIN : probability));
}
ESPALIER_HOST_DEVICE inline float log_prob_of(float probability) {
  return log_of(probability < FLT_MIN ? FLT_MIN : probability);
}

}  // namespace espalier::detail
