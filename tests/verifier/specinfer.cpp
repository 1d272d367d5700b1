// SPDX-License-Identifier: BSL-1.0
#include "espalier/verifier/specinfer.hpp"

#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/enumerating_chance.hpp"

using namespace espalier;

TEST_CASE("specinfer tests each draw once, in every order") {
  tree<> t(4);
  t.reset(0);
  for (const token_id x : {0, 1, 1, 2})
    t.draw(root_node, x, 0);
  struct one_row {
    std::vector<double> distribution;
    static bool has(node_id) { return true; }
    std::span<const double> row(node_id) const { return distribution; }
  };
  // Nothing of the target is in the tree: all draws fail.
  const one_row draft{{0.4, 0.3, 0.3, 0}};
  one_row target{{0, 0, 0, 1}};
  enumerating_chance chance;
  int orders = 0;
  do {
    REQUIRE(specinfer().verify(t, draft, target, chance) == verdict{root_node, 3});
    ++orders;
  } while (chance.next());
  CHECK(orders == 24);
}
