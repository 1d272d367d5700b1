// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/specinfer_static.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/testing/tree_policy_laws.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/specinfer_static.hpp"
#include "raises.hpp"
#include "tree_policy/flat_drafter.hpp"
#include "tree_policy/grow_tree.hpp"

using namespace espalier;

namespace {

std::int32_t draws_of(tree_view view, node_id u) {
  std::int32_t n = 0;
  for (auto draw = view.draws(u).begin(); draw != view.draws(u).end(); ++draw)
    ++n;
  return n;
}

}  // namespace

TEST_CASE("the largest static tree is the sum over levels, within the budget") {
  CHECK(specinfer_static().max_nodes() == 60);
  CHECK(specinfer_static({.budget = 20}).max_nodes() == 20);
  CHECK(specinfer_static({.level_1 = 0}).max_nodes() == 0);
  CHECK(specinfer_static({.level_1 = 3, .level_2 = 0, .level_3 = 5}).max_nodes() == 3);
  CHECK(specinfer_static({.budget = 1024, .level_1 = 64, .level_2 = 64, .level_3 = 64, .level_8 = 64}).max_nodes() ==
        1024);
  CHECK(specinfer_static(
            {.budget = 64, .level_1 = 1, .level_2 = 1, .level_3 = 3, .level_6 = 1, .level_7 = 1, .level_8 = 1})
            .max_nodes() == 20);
}

TEST_CASE("each different node of a level is drawn from as often as the level says") {
  specinfer_static policy({.budget = 400, .level_1 = 3, .level_2 = 4, .level_3 = 2, .level_4 = 5, .level_5 = 0});
  const std::int32_t expected[] = {3, 4, 2, 5, 0};
  int shared = 0;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    testing::row_drafter drafter = flat_drafter(seed % 2 == 0 ? 3 : 50);
    philox_chance chance(seed, 0, 0);
    const tree<> t = grow(policy, drafter, chance);
    const tree_view view = t;
    REQUIRE(drafter.passes == 4);
    shared += view.n_draws - (view.n_nodes - 1);
    for (node_id u = 0; u < view.n_nodes; ++u)
      REQUIRE(draws_of(view, u) == expected[view.depth[u]]);
  }
  CHECK(shared > 100);
}

TEST_CASE("independent draws: every static tree with its exact probability") {
  const std::vector<double> q{0.6, 0.4};
  testing::row_drafter drafter(2, [&](std::span<const token_id>) { return q; });
  specinfer_static policy({.level_1 = 2, .level_2 = 2, .level_3 = 0});
  std::map<std::vector<token_id>, double> distribution;
  enumerating_chance chance;
  do {
    const tree<> t = grow(policy, drafter, chance);
    const tree_view view = t;
    double expected = 1;
    std::vector<token_id> drawn;
    for (node_id u = 0; u < view.n_nodes; ++u) {
      for (const node_id child : view.draws(u)) {
        drawn.push_back(view.token[child]);
        expected *= q[static_cast<std::size_t>(view.token[child])];
      }
    }
    // One node where both draws of the root agree, two where they do not.
    REQUIRE(view.n_draws == (drawn[0] == drawn[1] ? 4 : 6));
    REQUIRE(std::abs(chance.probability() - expected) < 1e-14);
    distribution[drawn] += chance.probability();
  } while (chance.next());
  CHECK(distribution.size() == 2 * 4 + 2 * 16);
}

TEST_CASE("budget and limit cut a static tree off, level after level") {
  testing::row_drafter drafter = flat_drafter(1000);
  for (int limit = 0; limit <= 60; ++limit) {
    philox_chance chance(static_cast<std::uint32_t>(limit), 0, 0);
    specinfer_static whole, cut({.budget = std::max(limit, 1)});
    const tree<> a = grow(whole, drafter, chance, limit);
    REQUIRE(a.view().n_draws == limit);
    if (limit == 0) continue;
    const tree<> b = grow(cut, drafter, chance);
    REQUIRE(b.view().n_draws == limit);
    REQUIRE(std::equal(a.view().token, a.view().token + limit, b.view().token));
    const std::vector<std::int32_t> depths(b.view().depth, b.view().depth + b.size());
    REQUIRE(std::is_sorted(depths.begin(), depths.end()));
  }
}

TEST_CASE("a static tree's row of zeros is an error, and so are options out of range") {
  testing::row_drafter drafter(3, [](std::span<const token_id>) { return std::vector<double>(3, 0.0); });
  philox_chance chance(0, 0, 0);
  specinfer_static policy;
  CHECK(says(message_of<numeric_error>([&] { grow(policy, drafter, chance); }), "after node 0", "no probability"));
  const auto message = [](specinfer_static_options options) {
    return message_of<option_error>([=] { specinfer_static p(options); });
  };
  CHECK(says(message({.budget = 0}), "budget is 0"));
  CHECK(says(message({.budget = 1025}), "budget is 1025"));
  CHECK(says(message({.level_1 = -1}), "level_1 is -1"));
  CHECK(says(message({.level_8 = 65}), "level_8 is 65"));
}

TEST_CASE("TreePolicy laws: static trees and adaptive chains") {
  testing::check_tree_policy(specinfer_static());
  testing::check_tree_policy(specinfer_static({.budget = 1}));
  testing::check_tree_policy(specinfer_static({.budget = 17, .level_1 = 5, .level_2 = 5}));
  testing::check_tree_policy(specinfer_static({.level_1 = 0}));
  testing::check_tree_policy(adaptive_chain());
  testing::check_tree_policy(adaptive_chain({.length = 1, .max_length = 1, .confidence = 0}));
  testing::check_tree_policy(adaptive_chain({.length = 5, .max_length = 9, .confidence = 1}));
}
