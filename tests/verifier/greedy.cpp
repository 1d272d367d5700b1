// SPDX-License-Identifier: BSL-1.0
#include "espalier/verifier/greedy.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/random_tree.hpp"
#include "verifier/counted_rows.hpp"

using namespace espalier;

TEST_CASE("greedy follows the target's argmax and asks for the rows of the path alone") {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const tree<> t = testing::random_tree(40, seed, 4, 0.3);
    const tree_view view = t;
    counted_rows target = random_rows(40, 4, seed);
    counted_rows reference = target;
    philox_chance chance(0, 0, 0);
    const verdict v = greedy().verify(view, 0, target, chance);
    std::vector<int> expected(40, 0);
    for (const node_id u : testing::path_to(view, v.accepted)) {
      expected[static_cast<std::size_t>(u)] = 1;
      if (u != root_node) REQUIRE(view.token[u] == reference.argmax(view.parent[u]));
    }
    REQUIRE(v.token == reference.argmax(v.accepted));
    REQUIRE(view.find_child(v.accepted, v.token) == no_node);
    REQUIRE(target.asked == expected);
  }
}
