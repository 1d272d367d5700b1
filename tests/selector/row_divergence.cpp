// SPDX-License-Identifier: BSL-1.0
#include "espalier/selector/row_divergence.hpp"

#include <cmath>
#include <span>
#include <vector>

#include "catch.hpp"
#include "raises.hpp"

using namespace espalier;

TEST_CASE("the floored logarithm is the logarithm to 1e-6 of itself") {
  double worst = 0;
  for (double p = 1e-10; p <= 1; p *= 1.0001) {
    const auto x = static_cast<float>(p);
    if (x <= 1e-10F || x == 1) continue;
    const double exact = std::log(static_cast<double>(x));
    worst = std::max(worst, std::abs(detail::floored_log(x) / exact - 1));
  }
  for (float x = 1; x > 0.999F; x = std::nextafter(x, 0.0F)) {
    const double exact = std::log(static_cast<double>(x));
    if (x < 1) worst = std::max(worst, std::abs(detail::floored_log(x) / exact - 1));
  }
  CHECK(worst < 1e-6);
  CHECK(detail::floored_log(1) == 0);
  const double floor = std::log(1e-10);
  for (const float low : {0.0F, 1e-45F, 1e-30F, 1e-11F, -1.0F})
    CHECK(detail::floored_log(low) == Approx(floor).epsilon(1e-6));
}

TEST_CASE("rows that agree have no divergence; rows that share nothing the most there is") {
  const std::vector<float> one{1, 0}, other{0, 1}, even{0.5F, 0.5F};
  const auto between = [](const std::vector<float>& p, const std::vector<float>& q) {
    return row_divergence::of(std::span<const float>(p), std::span<const float>(q));
  };
  CHECK(between(even, even).target_to_draft == 0);
  CHECK(between(even, even).target_entropy == Approx(std::log(2.0)));
  CHECK(between(one, other).distance == 2);
  CHECK(between(one, other).target_to_draft == Approx(-std::log(1e-10)));
  CHECK(between(one, even).draft_to_target == Approx(0.5 * std::log(0.5) + 0.5 * (std::log(0.5) - std::log(1e-10))));
  CHECK(says(message_of<input_error>([&] { between(one, {1}); }), "2 tokens", "draft 1", "same vocabulary"));
}
