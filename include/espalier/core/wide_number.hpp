// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <type_traits>

#include "espalier/config.hpp"

namespace espalier {

//! What sums over a vocabulary, ratios of acceptance and probabilities of paths are reckoned in: double, or float where
//! ESPALIER_WIDE_NUMBER says so, for a processor that has no fast double.
//!
//! Law         what a verifier emits is distributed as the target alone would, to within rounding of this type, and of
//!             the rows'
using wide_number = ESPALIER_WIDE_NUMBER;
static_assert(std::is_same_v<wide_number, double> || std::is_same_v<wide_number, float>,
              "ESPALIER_WIDE_NUMBER must be double or float");

}  // namespace espalier
