// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/enumerating_chance.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/specinfer_static.hpp"
#include "laws/tree_policy.hpp"
#include "raises.hpp"
#include "tree_policy/row_drafter.hpp"

using namespace espalier;

namespace {

row_drafter flat_drafter(std::size_t vocab) {
  return row_drafter(static_cast<std::int32_t>(vocab), [=](std::span<const token_id>) {
    return std::vector<double>(vocab, 1.0 / static_cast<double>(vocab));
  });
}

template <class PolicyT, class ChanceT>
tree<> grow(PolicyT& policy, row_drafter& drafter, ChanceT& chance, int limit = 1 << 20) {
  tree<> t(policy.max_nodes());
  t.reset(0, limit);
  drafter.reserve(policy.max_nodes());
  drafter.passes = 0;
  policy.grow(t, drafter, chance);
  REQUIRE(drafter.lawful);
  return t;
}

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
    row_drafter drafter = flat_drafter(seed % 2 == 0 ? 3 : 50);
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
  row_drafter drafter(2, [&](std::span<const token_id>) { return q; });
  specinfer_static policy({.level_1 = 2, .level_2 = 2, .level_3 = 0});
  std::map<std::vector<token_id>, double> law;
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
    law[drawn] += chance.probability();
  } while (chance.next());
  CHECK(law.size() == 2 * 4 + 2 * 16);
}

TEST_CASE("budget and limit cut a static tree off, level after level") {
  row_drafter drafter = flat_drafter(1000);
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
  row_drafter drafter(3, [](std::span<const token_id>) { return std::vector<double>(3, 0.0); });
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
  check_tree_policy_laws(specinfer_static());
  check_tree_policy_laws(specinfer_static({.budget = 1}));
  check_tree_policy_laws(specinfer_static({.budget = 17, .level_1 = 5, .level_2 = 5}));
  check_tree_policy_laws(specinfer_static({.level_1 = 0}));
  check_tree_policy_laws(adaptive_chain());
  check_tree_policy_laws(adaptive_chain({.length = 1, .max_length = 1, .confidence = 0}));
  check_tree_policy_laws(adaptive_chain({.length = 5, .max_length = 9, .confidence = 1}));
}

TEST_CASE("an adaptive chain grows by two when all is accepted and shrinks by one when not") {
  row_drafter drafter = flat_drafter(4);
  adaptive_chain policy({.length = 3, .max_length = 8, .confidence = 0});
  philox_chance chance(0, 0, 0);
  const auto round = [&](node_id accepted) {
    const tree<> t = grow(policy, drafter, chance);
    const int drafted = t.size() - 1;
    REQUIRE(drafter.passes == drafted);
    policy.observe(t, {accepted < 0 ? t.size() - 1 : accepted, 0});
    return drafted;
  };
  CHECK(round(-1) == 3);
  CHECK(round(-1) == 5);
  CHECK(round(6) == 7);
  CHECK(round(-1) == 6);
  CHECK(round(-1) == 8);  // the most
  for (const int length : {8, 7, 6, 5, 4, 3, 2, 1, 1})
    CHECK(round(0) == length);
  CHECK(round(-1) == 1);
  CHECK(policy.length() == 3);
  tree<> none(0);
  policy.grow(none, drafter, chance);
  policy.observe(none, {root_node, 0});  // nothing was drafted
  CHECK(policy.length() == 3);
  CHECK(round(-1) == 3);
  policy.reset();
  CHECK(round(0) == 3);
}

TEST_CASE("an adaptive chain ends with the first token that the draft is unsure of") {
  // The best token is 1, with probability 0.9, 0.7, 0.5, 0.3, .. down the path.
  row_drafter drafter(3, [](std::span<const token_id> path) {
    const double best = std::max(0.34, 1.1 - 0.2 * static_cast<double>(path.size()));
    return std::vector<double>{(1 - best) / 2, best, (1 - best) / 2};
  });
  philox_chance chance(0, 0, 0);
  const auto drafted = [&](double confidence) {
    adaptive_chain policy({.confidence = confidence});
    const tree<> t = grow(policy, drafter, chance);
    REQUIRE(t.view().token[t.size() - 1] == 1);
    return t.size() - 1;
  };
  CHECK(drafted(0) == 20);
  CHECK(drafted(0.4) == 4);
  CHECK(drafted(0.6) == 3);
  CHECK(drafted(0.8) == 2);
  CHECK(drafted(1) == 1);
  row_drafter even = flat_drafter(4);
  adaptive_chain as_sure({.confidence = 0.25});
  CHECK(grow(as_sure, even, chance).size() == 21);  // as probable as it must be
  // All of a short draft accepted counts as all accepted.
  adaptive_chain policy;
  const tree<> t = grow(policy, drafter, chance);
  policy.observe(t, {4, 0});
  CHECK(policy.length() == 22);
  CHECK(grow(policy, drafter, chance, 2).size() == 3);
}

TEST_CASE("options of an adaptive chain out of range are errors that name them") {
  const auto message = [](adaptive_chain_options options) {
    return message_of<option_error>([=] { adaptive_chain p(options); });
  };
  CHECK(says(message({.length = 0}), "length is 0"));
  CHECK(says(message({.length = 65}), "length is 65", "between 1 and 64"));
  CHECK(says(message({.max_length = 1025}), "max_length is 1025"));
  CHECK(says(message({.confidence = 1.5}), "confidence is 1.5"));
  CHECK(says(message({.confidence = std::nan("")}), "confidence is", "nan"));
}
