// SPDX-License-Identifier: BSL-1.0
#include "espalier/selector/selector_layer.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <vector>

#include "catch.hpp"

using namespace espalier;

TEST_CASE("erf of float is erf") {
  double worst = 0;
  for (double x = -6; x <= 6; x += 1e-4) {
    const auto from = static_cast<float>(x);
    worst = std::max(worst, std::abs(static_cast<double>(detail::erf_of(from)) - std::erf(static_cast<double>(from))));
  }
  CHECK(worst < 5e-7);
}

TEST_CASE("numbers that are rounded to bytes are wrong by half of the least step at most") {
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  for (const float spread : {1e-30F, 1.0F, 1e30F}) {
    detail::whole_numbers whole{std::vector<std::int8_t>(400)};
    std::vector<float> x(400);
    for (float& number : x)
      number = spread * normal(random);
    whole.set(x.data(), x.size());
    int sum = 0, largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      REQUIRE(std::abs(static_cast<float>(whole.bytes[i]) - x[i] / whole.scale) < 0.5001F);
      sum += whole.bytes[i];
      largest = std::max(largest, std::abs(int{whole.bytes[i]}));
    }
    CHECK(whole.sum == sum);
    CHECK(largest == 127);
  }
  detail::whole_numbers zero{std::vector<std::int8_t>(64, std::int8_t{7})};
  zero.set(std::vector<float>(64).data(), 64);
  CHECK(zero.scale == 0);
  CHECK(zero.bytes == std::vector<std::int8_t>(64));
}

TEST_CASE("products of weights of 4 bits with bytes are exact, however long the rows") {
  std::mt19937 random(5);
  std::uniform_int_distribution<int> weight(-7, 7), byte(-127, 127);
  for (const std::size_t n : {8U, 32U, 400U, 8192U}) {
    for (const int largest : {0, 1, -1}) {
      constexpr std::size_t rows = 2 * detail::nibble_rows;
      std::vector<std::uint8_t> weights(rows * n / 2);
      std::vector<int> values(rows * n);
      detail::whole_numbers x{std::vector<std::int8_t>(n)};
      for (std::int8_t& number : x.bytes) {
        number = static_cast<std::int8_t>(largest != 0 ? 127 : byte(random));
        x.sum += number;
      }
      for (std::size_t i = 0; i < values.size(); ++i) {
        values[i] = largest != 0 ? 7 * largest : weight(random);
        detail::set_nibble(weights.data(), n, i / n, i % n, values[i]);
      }
      for (std::size_t first = 0; first < rows; first += detail::nibble_rows) {
        std::int32_t products[detail::nibble_rows];
        detail::multiply_nibbles(weights.data() + first * n / 2, x, n, products);
        for (std::size_t r = 0; r < detail::nibble_rows; ++r) {
          std::int32_t expected = 0;
          for (std::size_t i = 0; i < n; ++i)
            expected += values[(first + r) * n + i] * x.bytes[i];
          REQUIRE(products[r] == expected);
        }
      }
    }
  }
}
