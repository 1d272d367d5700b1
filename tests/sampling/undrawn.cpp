// SPDX-License-Identifier: BSL-1.0
#include "espalier/sampling/undrawn.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/weights.hpp"

using namespace espalier;

TEST_CASE("a row without its drawn tokens sums and draws as one where they are zero, bit for bit") {
  std::mt19937 random(5);
  for (const std::size_t n : {1U, 40U, 1024U, 5000U, 300000U}) {
    std::vector<float> row(n);
    for (float& x : row)
      x = static_cast<float>(random() % 1000) / 1e6F;
    tree<> drawn(30);
    drawn.reset(0);
    std::vector<float> left = row;
    while (!drawn.full() && drawn.size() <= static_cast<std::int32_t>(n)) {
      const auto t =
          static_cast<std::size_t>(drawn.size() % 2 == 0 ? random() % n : random() % std::min<std::size_t>(n, 70));
      drawn.draw(root_node, static_cast<token_id>(t), 0);
      left[t] = 0;
      const undrawn weights(drawn.view(), root_node, std::span<const float>(row));
      REQUIRE(detail::mass(weights) == detail::mass(left));
      for (const double u : {0.0, 0.4, 0.999, 1.0})
        REQUIRE(detail::categorical(weights, u) == detail::categorical(left, u));
    }
  }
}
