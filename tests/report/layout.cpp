// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/report/committed_path.hpp"
#include "espalier/report/tree_layout.hpp"
#include "espalier/report/tree_recorder.hpp"
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
