// SPDX-License-Identifier: BSL-1.0
#include "espalier/verifier/naive.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/testing/script_chance.hpp"
#include "one_node.hpp"
#include "verifier/scene.hpp"

using namespace espalier;

TEST_CASE("naive writes the target's distribution, for one draw") {
  naive verifier;
  one_node::require_lossless(verifier, 10, {1, 2, 3, 5}, {1});
}

TEST_CASE("naive accepts a path up to the first token that fails") {
  // Tokens 1 and 2 are drawn from fair rows; the target gives the first a fifth of what the draft gave, the second
  // more.
  scene s;
  s.p.rows[0] = {0.4, 0.05, 0.3, 0.25};
  s.p.rows[1] = {0, 0, 0.5, 0.5};
  s.p.rows[2] = {0, 0, 0, 1};
  const auto verify_with = [&](const std::vector<double>& uniforms) {
    script_chance chance(uniforms);
    return naive().verify(s.drawn, s.q, s.p, chance);
  };
  CHECK(verify_with({0.1, 0.9, 0.5}) == verdict{2, 3});
  // What the rejected token leaves: 0.15 of token 0, 0.05 of token 2.
  CHECK(verify_with({0.3, 0.7}) == verdict{0, 0});
  CHECK(verify_with({0.3, 0.8}) == verdict{0, 2});
}
