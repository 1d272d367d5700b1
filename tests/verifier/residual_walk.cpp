// SPDX-License-Identifier: BSL-1.0
#include "espalier/verifier/residual_walk.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "one_node.hpp"

using namespace espalier;

TEST_CASE("residual_walk writes the target's distribution, for every list of draws without replacement together") {
  residual_walk verifier;
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    for (const auto& m : one_node::models(4, seed)) {
      one_node::row_type distribution(4, 0.0);
      for (token_id x = 0; x < 4; ++x) {
        for (token_id y = 0; y < 4; ++y) {
          const double first = m.q[static_cast<std::size_t>(x)], second = m.q[static_cast<std::size_t>(y)];
          if (x == y || first == 0 || second == 0) continue;
          const auto given = one_node::output_distribution(verifier, m.p, m.q, {x, y});
          for (std::size_t t = 0; t < distribution.size(); ++t)
            distribution[t] += first * second / (1 - first) * given[t];
        }
      }
      double possible = 0;
      for (const double share : m.q)
        possible += share > 0 ? 1 : 0;
      INFO(m.name << ", seed " << seed);
      if (possible > 1) REQUIRE(one_node::distance(distribution, m.p) < 1e-9);
    }
  }
}

TEST_CASE("residual_walk passes over repeated draws") {
  residual_walk verifier;
  for (const auto& m : one_node::models(4, 3)) {
    for (token_id x = 0; x < 4; ++x) {
      for (token_id y = 0; y < 4; ++y) {
        if (x == y || m.q[static_cast<std::size_t>(x)] == 0 || m.q[static_cast<std::size_t>(y)] == 0) continue;
        REQUIRE(one_node::distance(one_node::output_distribution(verifier, m.p, m.q, {x, x, y, x}),
                                   one_node::output_distribution(verifier, m.p, m.q, {x, y})) < 1e-15);
      }
    }
  }
}

TEST_CASE("residual_walk writes the target's distribution, for every list of independent draws together") {
  residual_walk verifier;
  one_node::require_lossless(verifier, 10, {1, 2, 3, 5}, {1, 2, 3});
}
