// SPDX-License-Identifier: BSL-1.0
// Tested by tests/embedded/float_numbers.cpp
#pragma once

#include <type_traits>

#include "espalier/config.hpp"

namespace espalier {

//! The type of sums over a vocabulary, of ratios of acceptance and of probabilities of paths: double, or float if
//! ESPALIER_WIDE_NUMBER says so, for a processor without fast double arithmetic.
//!
//! Law         the committed tokens are distributed as the target alone would write them, up to rounding of this type
//!             and of the rows' type
using wide_number = ESPALIER_WIDE_NUMBER;
static_assert(std::is_same_v<wide_number, double> || std::is_same_v<wide_number, float>,
              "ESPALIER_WIDE_NUMBER must be double or float");

}  // namespace espalier
