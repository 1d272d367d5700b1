// SPDX-License-Identifier: BSL-1.0
#include "espalier/report/svg.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/views.hpp"
#include "random_trees.hpp"

using espalier::node_id;

namespace {

// Preorder, children in turn, the extra child last.
void walk(espalier::tree_view tree, node_id u, node_id extra_parent, std::vector<node_id>& order) {
  order.push_back(u);
  for (const node_id child : espalier::views::children(tree, u))
    walk(tree, child, extra_parent, order);
  if (u == extra_parent) order.push_back(tree.n_nodes);
}

}  // namespace

TEST_CASE("a layout gives every node a place of its own, in the order of the walk", "[tree_layout]") {
  for (unsigned seed = 0; seed < 200; ++seed) {
    const auto d = report_test::random_tree(seed);
    const espalier::tree_view tree = d.tree;
    const node_id extra = d.decision.accepted;
    const espalier::tree_layout layout(tree, extra);
    INFO("seed " << seed);

    std::vector<node_id> order;
    walk(tree, 0, extra, order);
    REQUIRE(order.size() == static_cast<std::size_t>(tree.n_nodes) + 1);
    std::map<int, int> last_row;  // of each column
    bool ascends = true;
    for (const node_id u : order) {
      const auto [found, is_new] = last_row.try_emplace(layout.column(u), -1);
      ascends = ascends && layout.row(u) > found->second && layout.row(u) < layout.n_rows();
      found->second = layout.row(u);
    }
    CHECK(ascends);
    CHECK(layout.n_columns() == static_cast<int>(last_row.size()));

    bool level = true;
    for (const node_id u : espalier::views::nodes(tree)) {
      for (const node_id child : espalier::views::children(tree, u)) {
        level = level && layout.row(child) == layout.row(u) && layout.column(child) == layout.column(u) + 1;
        break;  // the first
      }
    }
    CHECK(level);
    CHECK(layout.column(tree.n_nodes) == tree.depth[extra] + 1);
  }
}

TEST_CASE("a layout of one node", "[tree_layout]") {
  espalier::tree<4> tree;
  const espalier::tree_layout layout(tree);
  CHECK(layout.n_rows() == 1);
  CHECK(layout.n_columns() == 1);
  CHECK(layout.row(0) == 0);
}
