// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/weights.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "catch.hpp"

using namespace espalier;

TEST_CASE("a categorical draw is the smallest token whose cumulative weight exceeds u times the sum") {
  const auto draw = [](std::vector<double> w, double u) { return detail::categorical(std::span<const double>(w), u); };
  CHECK(draw({0, 2, 0, 6}, 0.0) == 1);
  CHECK(draw({0, 2, 0, 6}, 0.2499) == 1);
  CHECK(draw({0, 2, 0, 6}, 0.25) == 3);
  CHECK(draw({0, 2, 0, 6, 0}, 0.999999) == 3);
  CHECK(draw({1, 0, 0}, 1.0) == 0);  // rounding may reach the sum: the last token with weight
  CHECK(draw({0, 0}, 0.5) == -1);
  CHECK(draw({}, 0.5) == -1);
  CHECK(draw({5}, 0.7) == 0);
}

TEST_CASE("a draw from many weights is that of a running sum") {
  for (const std::size_t n : {1023U, 1024U, 1025U, 3000U, 151936U, 300000U}) {
    std::vector<double> weights(n), upto(n);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) {
      weights[i] = i % 7 == 3 ? 0 : 1 + static_cast<double>(i * 2654435761U % 1000) / 500;
      upto[i] = sum += weights[i];
    }
    for (int k = 0; k < 400; ++k) {
      // Middles of weights, at and around the edges of blocks too, so that rounding decides nothing.
      const std::size_t near = static_cast<std::size_t>(k) * n / 400 / 1024 * 1024 + static_cast<std::size_t>(k % 5);
      const std::size_t i = std::min(n - 1, k % 2 == 0 ? near : static_cast<std::size_t>(k) * n / 400);
      if (weights[i] == 0) continue;
      const double u = (upto[i] - weights[i] / 2) / sum;
      REQUIRE(detail::categorical(std::span<const double>(weights), u) == static_cast<std::int32_t>(i));
    }
    CHECK(detail::categorical(std::span<const double>(weights), 1.0) >= 0);
  }
}

TEST_CASE("the sum of many weights is exact enough where a running sum is not") {
  std::vector<float> weights(1 << 17, 0.1F);
  const double exact = static_cast<double>(0.1F) * (1 << 17);
  CHECK(std::abs(detail::mass(std::span<const float>(weights)) - exact) < 1e-6 * exact);
  float running = 0;
  for (const float w : weights)
    running += w;
  CHECK(std::abs(static_cast<double>(running) - exact) > 1e-4 * exact);
}
