// SPDX-License-Identifier: BSL-1.0
#include "espalier/report/tree_recorder.hpp"

#include <cstddef>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"

using espalier::node_id;

TEST_CASE("a recorder keeps the first of the deepest rounds, or the one asked for", "[tree_recorder]") {
  espalier::tree<> tree(8);
  const std::vector<espalier::token_id> committed{7, 7, 7, 7};
  espalier::tree_recorder deepest;
  espalier::tree_recorder second(2);
  espalier::tree_recorder never(9);
  int index = 0;
  for (const int accepted : {0, 3, 1, 3}) {
    tree.reset(100 + index);
    node_id u = 0;
    for (int i = 0; i < 3; ++i)
      u = tree.append(u, 10 * index + i, -0.5F);
    espalier::round_record r;
    r.index = index++;
    r.tree = tree;
    r.decision = {accepted, 7};
    r.committed = std::span(committed).first(static_cast<std::size_t>(accepted) + 1);
    deepest(r);
    second(r);
    never(r);
  }
  tree.reset(0);
  REQUIRE(deepest.found());
  CHECK(deepest.round() == 1);
  CHECK(deepest.decision() == espalier::verdict{3, 7});
  REQUIRE(deepest.tree().n_nodes == 4);
  CHECK(deepest.tree().n_draws == 3);
  CHECK(deepest.tree().token[0] == 101);
  CHECK(deepest.tree().token[3] == 12);
  CHECK(deepest.tree().find_child(2, 12) == 3);
  REQUIRE(second.found());
  CHECK(second.tree().token[0] == 102);
  CHECK_FALSE(never.found());
}
