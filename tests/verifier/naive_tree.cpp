// SPDX-License-Identifier: BSL-1.0
#include "espalier/verifier/naive_tree.hpp"

#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "one_node.hpp"

using namespace espalier;

TEST_CASE("naive_tree writes the target's distribution, for every list of draws together") {
  naive_tree verifier;
  one_node::require_lossless(verifier, 10, {1, 2, 3, 5}, {1, 2, 3});
}

TEST_CASE("naive_tree tests the first draw alone, and walks on where the residual lands on another") {
  const one_node::row_type p{0.2, 0.5, 0.3}, q{0.8, 0.1, 0.1};
  naive_tree verifier;
  // Token 0 is accepted with 0.2 / 0.8; what it leaves of the target is 0, 0.4, 0.2.
  const one_node::row_type distribution = one_node::output_distribution(verifier, p, q, {0, 1});
  CHECK(one_node::distance(distribution, one_node::row_type{0.25, 0.5, 0.25}) < 1e-15);
  // Repeated draws and the order of the later ones change nothing.
  CHECK(one_node::distance(one_node::output_distribution(verifier, p, q, {0, 2, 1, 0}), distribution) < 1e-15);
}
