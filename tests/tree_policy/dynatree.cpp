// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/dynatree.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/random_tree.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/verifier/greedy.hpp"
#include "raises.hpp"
#include "tree_policy/grow_tree.hpp"
#include "vectors.hpp"

using namespace espalier;
using nlohmann::json;

namespace {

// Rows by the last token of the path, as in the vectors: row 0 is the row at the root, row 1 + t the row after token t.
testing::row_drafter markov_drafter(const std::vector<std::vector<double>>& rows) {
  return testing::row_drafter(static_cast<std::int32_t>(rows[0].size()), [rows](std::span<const token_id> path) {
    return path.size() == 1 ? rows[0] : rows[static_cast<std::size_t>(path.back()) + 1];
  });
}

struct argmax_rows {
  std::vector<token_id> best;
  token_id argmax(node_id u) const { return best[static_cast<std::size_t>(u)]; }
};

// A tree of the vectors: its node i is our node i + 1, its depth d our d + 1.
void check_tree(const json& expected, tree_view view, const std::string& what) {
  INFO(what);
  const auto tokens = expected.at("tokens").get<std::vector<token_id>>();
  const auto parents = expected.at("parents").get<std::vector<node_id>>();
  const auto depths = expected.at("depths").get<std::vector<std::int32_t>>();
  const auto cum_logp = expected.at("cum_logp").get<std::vector<double>>();
  const auto mask = expected.value("mask", std::vector<std::string>());  // the first paper's trees have one
  REQUIRE(view.n_nodes == static_cast<std::int32_t>(tokens.size()) + 1);
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto u = static_cast<node_id>(i) + 1;
    REQUIRE(view.token[u] == tokens[i]);
    REQUIRE(view.parent[u] == parents[i] + 1);
    REQUIRE(view.depth[u] == depths[i] + 1);
    REQUIRE(std::abs(static_cast<double>(view.path_log_prob[u]) - cum_logp[i]) < 1e-5);
    std::string row(tokens.size(), '0');
    for (const node_id a : testing::path_to(view, u)) {
      if (a != root_node) row[static_cast<std::size_t>(a) - 1] = '1';
    }
    if (!mask.empty()) REQUIRE(row == mask[i]);
  }
  // The greedy walk with the vector's target tokens.
  argmax_rows target{expected.at("argmax").get<std::vector<token_id>>()};
  target.best.insert(target.best.begin(), expected.at("first_argmax").get<token_id>());
  philox_chance chance(0, 0, 0);
  const verdict v = greedy().verify(view, 0, target, chance);
  std::vector<token_id> commit;
  for (const node_id a : testing::path_to(view, v.accepted)) {
    if (a != root_node) commit.push_back(view.token[a]);
  }
  commit.push_back(v.token);
  REQUIRE(commit == expected.at("commit").get<std::vector<token_id>>());
}

dynatree_options v1_options(const json& v) {
  dynatree_options o = dynatree_options::first_paper();
  o.base_depth = o.max_depth = v.at("D");
  o.min_breadth = o.mid_breadth = o.max_breadth = v.at("B");
  o.prune_probability = v.at("tau");
  o.budget = std::max(2, v.at("n_max").get<int>());
  return o;
}

dynatree_options v2_options(const json& p) {
  dynatree_options o;
  o.min_breadth = p.at("Bmin"), o.mid_breadth = p.at("Bmid"), o.max_breadth = p.at("Bmax");
  o.low_confidence = p.at("tau_l"), o.high_confidence = p.at("tau_h");
  o.base_depth = p.at("D0"), o.max_depth = p.at("Dmax");
  o.stop_probability = p.at("rho_stop"), o.deep_probability = p.at("rho_deep");
  o.prune_probability = p.at("tau"), o.budget = p.at("nmax");
  o.history = false;
  return o;
}

}  // namespace

TEST_CASE("DynaTree vectors, first paper: trees, masks and greedy commits agree exactly") {
  int trees = 0;
  const json all = load_vectors("dynatree.json");
  for (const json& entry : all.at("trees")) {
    testing::row_drafter drafter = markov_drafter(entry.at("markov").at("Q").get<std::vector<std::vector<double>>>());
    for (const json& v : entry.at("v1")) {
      dynatree policy(v1_options(v));
      // A budget of one is refused as an option; the tree's own limit sets it.
      check_tree(v, grow(policy, drafter, v.at("n_max")), "first paper, tree " + std::to_string(trees++));
    }
  }
  CHECK(trees >= 60);
}

TEST_CASE("DynaTree vectors, second paper: trees, masks and greedy commits agree exactly") {
  int trees = 0;
  const json all = load_vectors("dynatree.json");
  for (const json& entry : all.at("trees")) {
    testing::row_drafter drafter = markov_drafter(entry.at("markov").at("Q").get<std::vector<std::vector<double>>>());
    for (const json& v : entry.at("v2")) {
      dynatree policy(v2_options(v.at("params")));
      check_tree(v, grow(policy, drafter), "second paper, tree " + std::to_string(trees++));
    }
  }
  CHECK(trees >= 36);
}

TEST_CASE("DynaTree vectors: history adapts exactly so") {
  const json all = load_vectors("dynatree.json");
  REQUIRE(all.at("history").size() >= 6);
  int changes = 0;
  for (const json& h : all.at("history")) {
    dynatree_options options;
    options.base_depth = h.at("D0"), options.max_depth = h.at("Dmax");
    options.high_confidence = h.at("tau_h"), options.deep_probability = h.at("rho_deep");
    dynatree policy(options);
    for (std::size_t i = 0; i < h.at("a").size(); ++i) {
      policy.observe_acceptance(h.at("a").at(i));
      const auto after = h.at("after").at(i).get<std::vector<double>>();
      REQUIRE(policy.adapted().base_depth == static_cast<int>(after[0]));
      REQUIRE(std::abs(policy.adapted().high_confidence - after[1]) < 1e-12);
      REQUIRE(std::abs(policy.adapted().deep_probability - after[2]) < 1e-12);
      changes += after[0] != options.base_depth ? 1 : 0;
    }
    policy.reset();
    REQUIRE(policy.adapted().base_depth == options.base_depth);
    for (int i = 0; i < 4; ++i)
      policy.observe_acceptance(0.0);
    REQUIRE(policy.adapted().base_depth == options.base_depth);  // the window starts empty again
  }
  CHECK(changes > 0);
}

TEST_CASE("DynaTree's acceptance statistic is committed / (D_0 + 2), at most 1") {
  tree<> t(20);
  t.reset(0);
  for (int i = 0; i < 20; ++i)
    t.append(i, 0, 0);
  dynatree deep;
  for (int i = 0; i < 5; ++i)
    deep.observe(t, {20, 0});  // 21 committed of 7: counts as 1
  CHECK(deep.adapted().base_depth == 6);
  dynatree between;
  for (int i = 0; i < 30; ++i)
    between.observe(t, {4, 0});  // 5 / 7 = 0.71: no change
  CHECK(between.adapted().base_depth == 5);
  dynatree shallow;
  for (int i = 0; i < 5; ++i)
    shallow.observe(t, {0, 0});  // 1 / 7
  CHECK(shallow.adapted().base_depth == 4);
  dynatree off(dynatree_options::first_paper());
  for (int i = 0; i < 20; ++i)
    off.observe(t, {0, 0});
  CHECK(off.adapted().base_depth == 8);
}

TEST_CASE("DynaTree's history averages over its window, in its steps, between its bounds") {
  dynatree quick({.history_window = 2, .history_step = 0.2});
  quick.observe_acceptance(0);  // half of the window
  CHECK(quick.adapted().base_depth == 4);
  CHECK(std::abs(quick.adapted().deep_probability - 0.7) < 1e-12);
  quick.observe_acceptance(1), quick.observe_acceptance(1);  // 0.5, then 1: the first round is forgotten
  CHECK(quick.adapted().base_depth == 4);
  dynatree slow({.history_window = 64});
  for (int i = 0; i < 31; ++i)
    slow.observe_acceptance(0);
  CHECK(slow.adapted().base_depth == 5);
  slow.observe_acceptance(0);
  CHECK(slow.adapted().base_depth == 4);
  dynatree bold({.low_acceptance = 0.1, .high_acceptance = 0.3});
  for (int i = 0; i < 5; ++i)
    bold.observe_acceptance(0.4);
  CHECK(bold.adapted().base_depth == 6);
  CHECK(says(message_of<option_error>([] { dynatree({.history_window = 65}); }), "history_window is 65"));
  CHECK(says(message_of<option_error>([] { dynatree({.low_acceptance = 0.9}); }), "low_acceptance is 0.9"));
}

TEST_CASE("DynaTree's acceptance can be the share of drafted tokens, as the paper's text has it") {
  tree<> t(20);
  t.reset(0);
  for (int i = 0; i < 20; ++i)
    t.append(i, 0, 0);
  dynatree by_depth, by_share({.history_statistic = acceptance_statistic::drafted});
  for (int i = 0; i < 5; ++i) {
    by_depth.observe(t, {8, 0});  // 9 committed of 7: deeper
    by_share.observe(t, {8, 0});  // 8 of 20 drafted: shallower
  }
  CHECK(by_depth.adapted().base_depth == 6);
  CHECK(by_share.adapted().base_depth == 4);
  t.reset(0);
  const dynatree_options before = by_share.adapted();
  by_share.observe(t, {root_node, 0});  // nothing was drafted
  CHECK(by_share.adapted().base_depth == before.base_depth);
}
