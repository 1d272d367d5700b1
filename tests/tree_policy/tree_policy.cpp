// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "raises.hpp"
#include "random_tree.hpp"
#include "tree_policy/row_drafter.hpp"
#include "vectors.hpp"

using namespace espalier;
using nlohmann::json;

namespace {

// Rows by the last token of the path, as in the vectors: row 0 is the law at the root, row 1 + t that after token t.
row_drafter markov_drafter(const std::vector<std::vector<double>>& law) {
  return row_drafter(static_cast<std::int32_t>(law[0].size()), [law](std::span<const token_id> path) {
    return path.size() == 1 ? law[0] : law[static_cast<std::size_t>(path.back()) + 1];
  });
}

// Grows one tree of at most `limit` nodes.
template <class PolicyT>
tree<> grow(PolicyT& policy, row_drafter& drafter, int limit = 1 << 20) {
  tree<> t(policy.max_nodes());
  t.reset(0, limit);
  drafter.reserve(policy.max_nodes());
  philox_chance chance(0, 0, 0);
  policy.grow(t, drafter, chance);
  REQUIRE(drafter.lawful);
  return t;
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
    for (const node_id a : path_to(view, u)) {
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
  for (const node_id a : path_to(view, v.accepted)) {
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

// Breadth-first growth written out naively: what fixed and chain must give.
struct naive_node {
  token_id token;
  int parent;
  int depth;
};
std::vector<naive_node> naive_fixed(const row_drafter::law_type& law, int depth, int breadth, std::size_t limit) {
  std::vector<naive_node> nodes{{0, -1, 0}};
  for (std::size_t u = 0; u < nodes.size(); ++u) {
    if (nodes[u].depth == depth) break;
    std::vector<token_id> path;
    for (int a = static_cast<int>(u); a >= 0; a = nodes[static_cast<std::size_t>(a)].parent)
      path.insert(path.begin(), nodes[static_cast<std::size_t>(a)].token);
    const std::vector<double> row = law(path);
    std::vector<token_id> best;
    for (std::size_t t = 0; t < row.size(); ++t) {
      if (row[t] > 0) best.push_back(static_cast<token_id>(t));
    }
    std::stable_sort(best.begin(), best.end(), [&](token_id a, token_id b) {
      return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
    });
    for (int i = 0; i < breadth && i < static_cast<int>(best.size()) && nodes.size() < limit + 1; ++i)
      nodes.push_back({best[static_cast<std::size_t>(i)], static_cast<int>(u), nodes[u].depth + 1});
  }
  return nodes;
}

void check_equal(tree_view view, const std::vector<naive_node>& expected) {
  REQUIRE(view.n_nodes == static_cast<std::int32_t>(expected.size()));
  for (node_id u = 1; u < view.n_nodes; ++u) {
    const naive_node& e = expected[static_cast<std::size_t>(u)];
    REQUIRE(view.token[u] == e.token);
    REQUIRE(view.parent[u] == e.parent);
    REQUIRE(view.depth[u] == e.depth);
  }
}

// An irregular law of the path with zeros and ties, over 6 tokens; some rows have one token only.
std::vector<double> path_law(std::span<const token_id> path) {
  std::uint32_t seed = 17;
  for (const token_id t : path)
    seed = seed * 31 + static_cast<std::uint32_t>(t) + 1;
  std::mt19937 random(seed);
  std::vector<double> row(6);
  double total = 0;
  for (double& p : row)
    total += p = static_cast<double>(random() % 4);
  if (total == 0) total = row[random() % 6] = 1;
  for (double& p : row)
    p /= total;
  return row;
}

}  // namespace

TEST_CASE("DynaTree vectors, first paper: trees, masks and greedy commits agree exactly") {
  int trees = 0;
  const json all = load_vectors("dynatree.json");
  for (const json& entry : all.at("trees")) {
    row_drafter drafter = markov_drafter(entry.at("markov").at("Q").get<std::vector<std::vector<double>>>());
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
    row_drafter drafter = markov_drafter(entry.at("markov").at("Q").get<std::vector<std::vector<double>>>());
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

TEST_CASE("fixed trees equal a naive construction, for every limit") {
  row_drafter drafter(6, path_law);
  for (const int depth : {1, 2, 3, 5}) {
    for (const int breadth : {1, 2, 3, 7}) {
      for (const int budget : {2, 3, 10, 64}) {
        fixed policy({.depth = depth, .breadth = breadth, .budget = budget});
        CHECK(policy.max_nodes() == budget);
        for (const int limit : {0, 1, 2, 9, 100}) {
          drafter.passes = 0;
          check_equal(grow(policy, drafter, limit),
                      naive_fixed(path_law, depth, breadth, static_cast<std::size_t>(std::min(limit, budget))));
          REQUIRE(drafter.passes <= depth);
        }
      }
    }
  }
}

TEST_CASE("a chain is a fixed tree of breadth one") {
  row_drafter drafter(6, path_law);
  for (const int length : {1, 2, 5, 40}) {
    chain policy({.length = length});
    for (const int limit : {0, 1, 4, 100}) {
      drafter.passes = 0;
      const tree<> t = grow(policy, drafter, limit);
      check_equal(t, naive_fixed(path_law, length, 1, static_cast<std::size_t>(std::min(limit, length))));
      REQUIRE(drafter.passes == std::min(limit, length));
    }
  }
}

TEST_CASE("plain drafts nothing") {
  row_drafter drafter(6, path_law);
  plain policy;
  CHECK(grow(policy, drafter).size() == 1);
  CHECK(drafter.passes == 0);
}

TEST_CASE("tokens of draft probability 0 are never drafted") {
  // One token has all the probability: a breadth of 3 finds one child.
  row_drafter drafter(4, [](std::span<const token_id> path) {
    std::vector<double> row(4, 0.0);
    row[path.size() % 4] = 1;
    return row;
  });
  fixed wide({.depth = 3, .breadth = 3});
  CHECK(grow(wide, drafter).size() == 4);
  dynatree_options options = dynatree_options::first_paper();
  options.max_depth = options.base_depth = 3;
  dynatree unsure(options);
  CHECK(grow(unsure, drafter).size() == 5);
  row_drafter silent(4, [](std::span<const token_id>) { return std::vector<double>(4, 0.0); });
  chain straight;
  CHECK(grow(straight, silent).size() == 1);
  CHECK(grow(wide, silent).size() == 1);
  CHECK(grow(unsure, silent).size() == 1);
}

TEST_CASE("options of tree policies out of range are errors that name option, value and range") {
  const auto chain_message = [](int k) { return message_of<option_error>([&] { chain c({.length = k}); }); };
  for (const int bad : {0, -1, 1025})
    CHECK(says(chain_message(bad), "option length is " + std::to_string(bad) + ",", "between 1 and 1024"));

  const auto fixed_message = [](fixed_options o) { return message_of<option_error>([&] { fixed f(o); }); };
  for (const int bad : {0, -3, 65})
    CHECK(says(fixed_message({.depth = bad}), "option depth is " + std::to_string(bad) + ",", "between 1 and 64"));
  for (const int bad : {0, -3, 65})
    CHECK(says(fixed_message({.breadth = bad}), "option breadth is " + std::to_string(bad) + ",", "between 1 and 64"));
  for (const int bad : {0, 1, -5, 65537})
    CHECK(says(fixed_message({.budget = bad}), "option budget is " + std::to_string(bad) + ",", "between 2 and 65536"));
  CHECK(fixed_message({.depth = 64, .breadth = 64, .budget = 65536}).empty());

  const auto message = [](dynatree_options o) { return message_of<option_error>([&] { dynatree d(o); }); };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(message({}).empty());
  CHECK(message(dynatree_options::first_paper()).empty());
  for (const int bad : {0, 1, -1, 65537})
    CHECK(says(message({.budget = bad}), "option budget is " + std::to_string(bad) + ",", "between 2 and 65536"));
  CHECK(says(message({.max_depth = 0}), "option max_depth is 0,", "between 1 and 64"));
  CHECK(says(message({.max_depth = 65}), "option max_depth is 65,", "between 1 and 64"));
  CHECK(says(message({.base_depth = 0}), "option base_depth is 0,", "between 1 and 8"));
  CHECK(says(message({.base_depth = 9}), "option base_depth is 9,", "between 1 and 8"));
  CHECK(says(message({.max_breadth = 0}), "option max_breadth is 0,", "between 1 and 64"));
  CHECK(says(message({.max_breadth = 65}), "option max_breadth is 65,", "between 1 and 64"));
  CHECK(says(message({.mid_breadth = 4}), "option mid_breadth is 4,", "between 1 and 3"));
  CHECK(says(message({.min_breadth = 0}), "option min_breadth is 0,", "between 1 and 2"));
  CHECK(says(message({.min_breadth = 3}), "option min_breadth is 3,", "between 1 and 2"));
  for (const double bad : {-0.1, 1.1, nan}) {
    CHECK(says(message({.high_confidence = bad}), "option high_confidence is ", "between 0 and 1"));
    CHECK(says(message({.prune_probability = bad}), "option prune_probability is ", "between 0 and 1"));
    CHECK(says(message({.deep_probability = bad}), "option deep_probability is ", "between 0 and 1"));
  }
  for (const double bad : {-0.1, 0.95, nan})
    CHECK(says(message({.low_confidence = bad}), "option low_confidence is ", "between 0 and 0.9"));
  for (const double bad : {-0.1, 0.6, nan})
    CHECK(says(message({.stop_probability = bad}), "option stop_probability is ", "between 0 and 0.5"));
}
