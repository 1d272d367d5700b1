// SPDX-License-Identifier: BSL-1.0
#include "espalier/sampling/exponential.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "catch.hpp"

using namespace espalier;

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("the exponential is as exact as it says") {
  double worst = 0;
  for (float x = 0; x < 126; x += 0.00053F) {
    const double exact = std::exp2(-static_cast<double>(x));
    worst = std::max(worst, std::abs(static_cast<double>(detail::exp2_of_minus(x)) - exact) / exact);
  }
  CHECK(worst < 2e-7);
  CHECK(detail::exp2_of_minus(0.0F) == 1.0F);
  CHECK(detail::exp2_of_minus(-0.0F) == 1.0F);
  CHECK(detail::exp2_of_minus(127.0F) == 0.0F);
  CHECK(detail::exp2_of_minus(1e30F) == 0.0F);
  CHECK(detail::exp2_of_minus(infinity) == 0.0F);
}
