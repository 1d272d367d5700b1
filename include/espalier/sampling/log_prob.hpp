// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cfloat>

#include "espalier/config.hpp"
#include "espalier/sampling/exponential.hpp"

namespace espalier::detail {

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
