// SPDX-License-Identifier: BSL-1.0
#include "espalier/verifier/block_verification.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/verifier/naive.hpp"
#include "one_node.hpp"
#include "raises.hpp"
#include "verifier/scene.hpp"

using namespace espalier;

TEST_CASE("block verification needs a single path") {
  scene s;
  s.drawn.reset(0);
  s.drawn.draw(0, 1, 0);
  s.drawn.draw(0, 1, 0);
  philox_chance chance(0, 0, 0);
  CHECK(says(message_of<input_error>([&] { block_verification().verify(s.drawn, s.q, s.p, chance); }), "node 0",
             "several draws", "single path"));
}

TEST_CASE("over one drawn token block verification is naive") {
  for (std::uint32_t seed = 0; seed < 10; ++seed) {
    for (const auto& m : one_node::models(6, seed)) {
      for (token_id x = 0; x < 6; ++x) {
        if (m.q[static_cast<std::size_t>(x)] == 0) continue;
        INFO(m.name << ", token " << x);
        block_verification verifier;
        naive reference;
        REQUIRE(one_node::distance(one_node::output_distribution(verifier, m.p, m.q, {x}),
                                   one_node::output_distribution(reference, m.p, m.q, {x})) < 1e-12);
      }
    }
  }
}

TEST_CASE("nothing is asked of the target below a token that it gives probability 0") {
  // Below the first drafted token it has no distribution.
  struct dead_end {
    std::vector<double> root{0, 0.5, 0.5};
    std::span<const double> row(node_id u) const {
      if (u != root_node) raise<numeric_error>("nothing is possible after node ", u);
      return root;
    }
  };
  tree<> path(3);
  path.reset(0);
  node_id u = root_node;
  for (const token_id x : {0, 1, 2})
    u = path.draw(u, x, 0);
  const std::vector<double> even(3, 1.0 / 3);
  const std::int32_t row_of[] = {0, 0, 0, 0};
  const node_rows<double> draft{{even.data(), 1, 3}, row_of};
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    dead_end target;
    philox_chance chance(seed, 0, 0);
    const verdict v = block_verification().verify(path, draft, target, chance);
    CHECK(v.accepted == root_node);
    CHECK(v.token > 0);
  }
}
