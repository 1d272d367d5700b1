// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cfloat>

#include "espalier/config.hpp"
#include "espalier/sampling/exponential.hpp"

namespace espalier::detail {

// What the log-probabilities of paths are added up from, where they are compared: the same on host and device.
//
// Pre         probability > 0
ESPALIER_HOST_DEVICE inline double path_log_prob_of(double probability) {
  const double log_prob = log_of(probability < DBL_MIN ? DBL_MIN : probability);
  return log_prob < 0 ? log_prob : 0;
}

// What a tree keeps of the probability of a token: the same on host and device, since trees are grown by it.
//
// Pre         probability > 0
ESPALIER_HOST_DEVICE inline float log_prob_of(double probability) {
  return static_cast<float>(log_of(probability < DBL_MIN ? DBL_MIN : probability));
}
ESPALIER_HOST_DEVICE inline float log_prob_of(float probability) {
  return log_of(probability < FLT_MIN ? FLT_MIN : probability);
}

}  // namespace espalier::detail
