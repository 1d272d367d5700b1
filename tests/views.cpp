// SPDX-License-Identifier: BSL-1.0
#include "espalier/views.hpp"

#include <range/v3/range/conversion.hpp>
#include <range/v3/view/reverse.hpp>
#include <vector>

#include "catch.hpp"
#include "espalier/core/tree.hpp"

namespace {

using espalier::node_id;
namespace views = espalier::views;
using nodes = std::vector<node_id>;

//     0 ─ 1 ─ 3
//       │   └ 4 ─ 6
//       └ 2 ─ 5
// where 1, 2, 1, 1, 2 were drawn from the root, and 3, 3, 4 from node 1.
espalier::tree<16> example() {
  espalier::tree<16> tree;
  tree.reset(7);
  for (const int token : {10, 20, 10, 10, 20})
    tree.draw(0, token, -1.0F);
  for (const int token : {30, 30, 40})
    tree.draw(1, token, -1.0F);
  tree.draw(2, 50, -1.0F);
  tree.draw(4, 60, -1.0F);
  return tree;
}

template <class RangeT>
nodes listed(RangeT&& range) {
  return ranges::to<std::vector>(range);
}

}  // namespace

TEST_CASE("children are listed once, in the order of their first draw", "[views]") {
  const auto tree = example();
  REQUIRE(tree.size() == 7);
  CHECK(listed(views::children(tree, 0)) == nodes{1, 2});
  CHECK(listed(views::children(tree, 1)) == nodes{3, 4});
  CHECK(listed(views::children(tree, 2)) == nodes{5});
  CHECK(listed(views::children(tree, 6)).empty());
}

TEST_CASE("ancestors run from the parent to the root", "[views]") {
  const auto tree = example();
  CHECK(listed(views::ancestors(tree, 6)) == nodes{4, 1, 0});
  CHECK(listed(views::ancestors(tree, 2)) == nodes{0});
  CHECK(listed(views::ancestors(tree, 0)).empty());
}

TEST_CASE("a path runs from the root to the node", "[views]") {
  const auto tree = example();
  CHECK(listed(views::path(tree, 6)) == nodes{0, 1, 4, 6});
  CHECK(listed(views::path(tree, 0)) == nodes{0});
  CHECK(listed(views::path(tree, 6) | ranges::views::reverse) == nodes{6, 4, 1, 0});
}

TEST_CASE("leaves have no children, and nodes of a depth have that depth", "[views]") {
  const auto tree = example();
  CHECK(listed(views::leaves(tree)) == nodes{3, 5, 6});
  CHECK(listed(views::at_depth(tree, 0)) == nodes{0});
  CHECK(listed(views::at_depth(tree, 2)) == nodes{3, 4, 5});
  CHECK(listed(views::at_depth(tree, 4)).empty());
  CHECK(listed(views::nodes(tree)) == nodes{0, 1, 2, 3, 4, 5, 6});
}

TEST_CASE("a root alone is a leaf", "[views]") {
  espalier::tree<4> tree;
  CHECK(listed(views::leaves(tree)) == nodes{0});
  CHECK(listed(views::children(tree, 0)).empty());
}
