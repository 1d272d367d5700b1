// SPDX-License-Identifier: BSL-1.0
#include "espalier/report/committed_path.hpp"

#include "catch.hpp"
#include "espalier/core/tree.hpp"

using espalier::node_id;

TEST_CASE("the committed path is the accepted node and its ancestors", "[committed_path]") {
  espalier::tree<8> tree;
  tree.reset(1);
  const node_id a = tree.append(0, 2, -1);
  const node_id b = tree.append(0, 3, -1);
  const node_id c = tree.append(a, 4, -1);
  const espalier::committed_path fresh(tree, {c, 9});
  CHECK((fresh.has(0) && fresh.has(a) && fresh.has(c) && !fresh.has(b)));
  CHECK(fresh.own() == espalier::no_node);
  const espalier::committed_path cut(tree, {a, 4});
  CHECK(cut.own() == c);
  CHECK_FALSE(cut.has(c));
}
