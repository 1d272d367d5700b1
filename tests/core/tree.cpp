// SPDX-License-Identifier: BSL-1.0
#include "espalier/core/tree.hpp"

#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/testing/random_tree.hpp"
#include "raises.hpp"

using namespace espalier;

static_assert(std::is_trivially_copyable_v<tree_view>);
static_assert(std::is_trivially_copyable_v<verdict>);
static_assert(std::is_trivially_copyable_v<tree<8>>);

namespace {

std::vector<node_id> draws_of(tree_view tree, node_id u) {
  std::vector<node_id> out;
  for (const node_id child : tree.draws(u))
    out.push_back(child);
  return out;
}

}  // namespace

TEST_CASE("a new tree is its root") {
  tree<> t(3);
  t.reset(17);
  const tree_view view = t;
  CHECK(view.n_nodes == 1);
  CHECK(view.n_draws == 0);
  CHECK(view.token[0] == 17);
  CHECK(view.parent[0] == no_node);
  CHECK(view.depth[0] == 0);
  CHECK(view.path_log_prob[0] == 0.0F);
  CHECK(view.is_leaf(root_node));
  CHECK(draws_of(view, root_node).empty());
}

TEST_CASE("draws keep their order and multiplicity, nodes are shared") {
  tree<> t(8);
  t.reset(0);
  CHECK(t.draw(0, 5, -1.0F) == 1);
  CHECK(t.draw(0, 3, -2.0F) == 2);
  CHECK(t.draw(0, 5, -1.0F) == 1);
  CHECK(t.draw(1, 5, -0.5F) == 3);
  CHECK(t.draw(0, 3, -2.0F) == 2);
  CHECK(t.draw(0, 7, -3.0F) == 4);
  const tree_view view = t;
  CHECK(view.n_nodes == 5);
  CHECK(view.n_draws == 6);
  CHECK(draws_of(view, 0) == std::vector<node_id>{1, 2, 1, 2, 4});
  CHECK(draws_of(view, 1) == std::vector<node_id>{3});
  CHECK(view.is_leaf(2));
  CHECK(view.find_child(0, 3) == 2);
  CHECK(view.find_child(1, 5) == 3);
  CHECK(view.find_child(0, 6) == no_node);
  CHECK(view.path_log_prob[3] == -1.5F);
  CHECK(view.ancestor_at(3, 1) == 1);
  CHECK(view.ancestor_at(3, 0) == 0);
}

TEST_CASE("a full tree refuses, by its capacity and by its limit, counting draws") {
  tree<> t(4);
  t.reset(0, 2);
  CHECK(t.limit() == 2);
  CHECK(t.draw(0, 1, 0) == 1);
  CHECK(t.draw(0, 1, 0) == 1);
  CHECK(t.full());
  CHECK(t.draw(0, 1, 0) == no_node);
  CHECK(t.append(1, 2, 0) == no_node);
  CHECK(t.size() == 2);
  t.reset(0);
  CHECK(t.limit() == 4);
  for (int i = 0; i < 4; ++i)
    CHECK(t.append(t.size() - 1, i, 0) == i + 1);
  CHECK(t.append(0, 9, 0) == no_node);
  t.reset(0, 100);
  CHECK(t.limit() == 4);
  t.reset(0, -3);
  CHECK(t.limit() == 0);
  CHECK(t.append(0, 9, 0) == no_node);
}

TEST_CASE("a tree of no capacity is its root alone; a negative one is an error") {
  tree<> dynamic(0);
  CHECK(dynamic.full());
  CHECK(dynamic.append(0, 1, 0) == no_node);
  tree<0> fixed_size;
  CHECK(fixed_size.full());
  CHECK(fixed_size.draw(0, 1, 0) == no_node);
  CHECK(says(message_of<option_error>([] { tree<> t(-1); }), "tree capacity", "-1", "0"));
}

TEST_CASE("random trees obey the law of trees") {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    std::mt19937 random(seed);
    tree<> t(60);
    t.reset(1);
    std::vector<std::vector<node_id>> expected(61);
    while (!t.full()) {
      const auto u = static_cast<node_id>(random() % static_cast<unsigned>(t.size()));
      const node_id child = t.draw(u, static_cast<token_id>(random() % 4), -0.25F);
      expected[static_cast<std::size_t>(u)].push_back(child);
    }
    const tree_view view = t;
    REQUIRE(view.n_draws == 60);
    for (node_id u = 0; u < view.n_nodes; ++u) {
      REQUIRE(draws_of(view, u) == expected[static_cast<std::size_t>(u)]);
      if (u == 0) continue;
      REQUIRE(view.parent[u] < u);
      REQUIRE(view.depth[u] == view.depth[view.parent[u]] + 1);
      REQUIRE(view.path_log_prob[u] == -0.25F * static_cast<float>(view.depth[u]));
      REQUIRE(view.find_child(view.parent[u], view.token[u]) == u);
    }
  }
}

TEST_CASE("a tree with a compile-time capacity takes nothing from the heap") {
  allocation_count count;
  tree<16> t;
  t.reset(3);
  for (int i = 0; i < 20; ++i)
    t.draw(t.size() / 2, i % 5, -1.0F);
  CHECK(count.so_far() == 0);
  CHECK(t.view().n_draws == 16);
  CHECK(t.capacity() == 16);
}

TEST_CASE("a tree allocates when it is built and never again") {
  tree<> t(100);
  allocation_count count;
  for (int round = 0; round < 3; ++round) {
    t.reset(round);
    for (int i = 0; i < 120; ++i)
      t.draw(t.size() - 1, i % 7, -1.0F);
  }
  CHECK(count.so_far() == 0);
  CHECK(t.view().n_draws == 100);
}

TEST_CASE("cutting a verdict keeps the first tokens of what it commits") {
  tree<> t(4);
  t.reset(10);
  t.append(0, 11, 0);
  t.append(0, 21, 0);
  t.append(1, 12, 0);
  t.append(3, 13, 0);
  const verdict whole{4, 99};
  CHECK(cut(t, whole, 4) == whole);
  CHECK(cut(t, whole, 3) == verdict{3, 13});
  CHECK(cut(t, whole, 2) == verdict{1, 12});
  CHECK(cut(t, whole, 1) == verdict{0, 11});
  CHECK(cut(t, {2, 5}, 1) == verdict{0, 21});
  CHECK(cut(t, {0, 5}, 1) == verdict{0, 5});
}

TEST_CASE("a child of what is no node is an error, until the tree is full") {
  const auto refuses = [](auto& t) {
    t.reset(0, 3);
    t.append(0, 1, 0);
    for (const node_id bad : {-1, 2, -7, 1000}) {
      const std::string node = "node " + std::to_string(bad) + ",";
      CHECK(says(message_of<input_error>([&] { t.append(bad, 1, 0); }), node, "nodes 0 to 1"));
      CHECK(says(message_of<input_error>([&] { t.draw(bad, 1, 0); }), node, "nodes 0 to 1"));
    }
    CHECK(t.size() == 2);
    // The last one has no room, and so has nothing below it.
    node_id u = root_node;
    for (int i = 0; i < 4; ++i)
      u = t.append(u, 2, 0);
    CHECK(u == no_node);
    CHECK(t.draw(u, 2, 0) == no_node);
    CHECK(t.size() == 4);
  };
  tree<> grown(5);
  refuses(grown);
  tree<5> fixed;
  refuses(fixed);
}

TEST_CASE("append is for a token that the node does not have yet, draw for one that may repeat") {
  tree<> t(5);
  t.reset(0);
  CHECK(t.append(0, 7, 0) == 1);
  CHECK(says(message_of<input_error>([&] { t.append(0, 7, 0); }), "token 7", "node 0", "append()", "draw()"));
  CHECK(t.size() == 2);
  CHECK(t.draw(0, 7, 0) == 1);
  CHECK(t.append(1, 7, 0) == 2);
  CHECK(t.append(0, 0, 0) == 3);
  CHECK(t.draw(0, 5, 0) == 4);
  // A full tree refuses as ever.
  CHECK(t.full());
  CHECK(t.append(0, 7, 0) == no_node);
}

TEST_CASE("the numbers of an accepted path are appended root first, by whatever numbers nodes have") {
  tree<> t(6);
  t.reset(9);
  const node_id a = t.append(0, 1, 0), b = t.append(0, 2, 0), c = t.append(a, 3, 0), d = t.append(c, 4, 0);
  REQUIRE(b == 2);
  const std::vector<std::int32_t> rows{0, 4, 3, 2, 1}, slots{100, 140, 130, 120, 110};
  std::vector<std::int32_t> path{-7};
  append_path(path, t, {.accepted = d, .token = 0}, rows);
  CHECK(path == std::vector<std::int32_t>{-7, 0, 4, 2, 1});
  path.clear();
  append_path(path, t, {.accepted = b, .token = 0}, slots);
  CHECK(path == std::vector<std::int32_t>{100, 130});
  append_path(path, t, {.accepted = root_node, .token = 0}, slots);
  CHECK(path == std::vector<std::int32_t>{100, 130, 100});
  const auto message = [&](verdict v, std::span<const std::int32_t> of) {
    return message_of<input_error>([&] { append_path(path, t, v, of); });
  };
  CHECK(says(message({.accepted = 5, .token = 0}, slots), "accepts node 5, but the tree has the nodes 0 to 4"));
  CHECK(says(message({.accepted = no_node, .token = 0}, slots), "accepts node -1"));
  CHECK(says(message({.accepted = d, .token = 0}, std::span(slots).first(4)), "4 numbers of nodes", "has 5 nodes"));
  CHECK(path == std::vector<std::int32_t>{100, 130, 100});
  std::vector<token_id> text{9};
  CHECK(says(message_of<input_error>([&] { append_committed(text, t, {.accepted = 5, .token = 0}); }), "node 5"));
  CHECK(text == std::vector<token_id>{9});
}
