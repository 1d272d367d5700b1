// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/tree_order.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "core/orders.hpp"
#include "espalier/testing/random_tree.hpp"
#include "raises.hpp"
#include "vectors.hpp"

using namespace espalier;

namespace {

bool is_lawful(tree_view tree, const tree_order& order) {
  std::vector<char> seen(static_cast<std::size_t>(tree.n_nodes), 0);
  if (order.nodes().size() != seen.size() || order.rows().size() != seen.size() || order.nodes()[0] != root_node)
    return false;
  for (node_id u = 0; u < tree.n_nodes; ++u) {
    const auto row = static_cast<std::size_t>(order.rows()[static_cast<std::size_t>(u)]);
    if (row >= seen.size() || seen[row]++ != 0 || order.nodes()[row] != u) return false;
    if (u > 0 && order.rows()[static_cast<std::size_t>(tree.parent[u])] >= static_cast<std::int32_t>(row)) return false;
  }
  return true;
}

std::vector<int> subtree_sizes(tree_view tree, int skipped) {
  std::vector<int> sizes(static_cast<std::size_t>(tree.n_nodes), 0);
  for (node_id u = 0; u < tree.n_nodes; ++u) {
    for (const node_id a : testing::path_to(tree, u))
      ++sizes[static_cast<std::size_t>(a)];
  }
  return {sizes.begin() + skipped, sizes.end()};
}

}  // namespace

TEST_CASE("layout vectors: orders, depths and masks agree exactly") {
  const nlohmann::json all = load_vectors("layout.json");
  REQUIRE(all.size() >= 22);
  int largest = 0;
  int masks = 0;
  for (const nlohmann::json& entry : all) {
    const layout_tree t(entry);
    const tree_view view = t.built;
    const auto n = static_cast<int>(t.parents.size());
    largest = std::max(largest, n);
    tree_order order(view.n_nodes);
    for (std::size_t o = 0; o < orders.size(); ++o) {
      order.compute(view, orders[o]);
      REQUIRE(is_lawful(view, order));
      std::vector<int> found(order.nodes().begin() + t.shift, order.nodes().end());
      for (int& u : found)
        u -= t.shift;
      REQUIRE(found == entry.at("orders").at(order_names[o]).get<std::vector<int>>());
    }
    if (!entry.contains("mask")) continue;
    for (int i = 0; i < n; ++i)
      REQUIRE(view.depth[i + t.shift] - t.shift == entry.at("depths").at(static_cast<std::size_t>(i)).get<int>());
    REQUIRE(subtree_sizes(view, t.shift) == entry.at("subtree_sizes").get<std::vector<int>>());
    order.compute(view, node_order::insertion);
    REQUIRE(mask_text(view, order, t.shift) == entry.at("mask").get<std::vector<std::string>>());
    order.compute(view, node_order::depth_first);
    REQUIRE(mask_text(view, order, t.shift) == entry.at("mask_dfs").get<std::vector<std::string>>());
    ++masks;
  }
  CHECK(largest >= 2048);
  CHECK(masks >= 18);
}

TEST_CASE("every order is lawful for random trees, and one object serves trees of many sizes") {
  tree_order order(200);
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    const tree<> t = testing::random_tree(static_cast<int>(seed * 5 + 1), seed, 500, seed % 2 == 0 ? 0.0 : 0.7);
    for (const node_order o : orders) {
      order.compute(t, o);
      REQUIRE(is_lawful(t, order));
    }
  }
}

TEST_CASE("an order refuses a tree that it has no room for, and keeps the one before") {
  const tree<> fits = testing::random_tree(8, 1, 500, 0.5), larger = testing::random_tree(9, 1, 500, 0.5);
  tree_order order(8);
  order.compute(fits, node_order::depth_first);
  const std::vector<node_id> before(order.nodes().begin(), order.nodes().end());
  for (const node_order o : orders) {
    CHECK(says(message_of<input_error>([&] { order.compute(larger, o); }), "9 nodes", "1 to 8"));
    CHECK(says(message_of<input_error>([&] { order.compute(tree_view(), o); }), "0 nodes"));
  }
  CHECK(std::equal(before.begin(), before.end(), order.nodes().begin(), order.nodes().end()));
}
