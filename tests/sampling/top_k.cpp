// SPDX-License-Identifier: BSL-1.0
#include "espalier/sampling/top_k.hpp"

#include <algorithm>
#include <cstddef>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"

using namespace espalier;

TEMPLATE_TEST_CASE("top-k agrees with a stable sort", "", float, double) {
  std::mt19937 random(1);
  for (const std::size_t n : {1U, 2U, 63U, 64U, 65U, 200U, 1000U}) {
    for (const std::size_t k : {1U, 2U, 3U, 10U, 64U, 65U, 1500U}) {
      for (const unsigned levels : {1U, 2U, 5U, 100000U}) {
        std::vector<TestType> row(n);
        for (TestType& p : row)
          p = static_cast<TestType>(random() % levels);  // ties; zeros are frequent with few levels
        std::vector<token_id> expected;
        for (std::size_t t = 0; t < n; ++t) {
          if (row[t] > 0) expected.push_back(static_cast<token_id>(t));
        }
        std::stable_sort(expected.begin(), expected.end(), [&](token_id a, token_id b) {
          return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
        });
        expected.resize(std::min(k, expected.size()));
        std::vector<candidate<TestType>> out(k);
        const auto found = static_cast<std::size_t>(top_k(std::span<const TestType>(row), std::span(out)));
        REQUIRE(found == expected.size());
        bool right = true;
        for (std::size_t i = 0; i < found; ++i) {
          right = right && out[i].token == expected[i];
          right = right && out[i].probability == row[static_cast<std::size_t>(expected[i])];
        }
        REQUIRE(right);
      }
    }
  }
  std::vector<candidate<TestType>> none;
  CHECK(top_k(std::span<const TestType>(std::vector<TestType>{1, 2}), std::span(none)) == 0);
  CHECK(top_k(std::span<const TestType>(), std::span(none)) == 0);
}
