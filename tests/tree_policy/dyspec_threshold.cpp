// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/dyspec_threshold.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "tree_policy/grow_below_none.hpp"

using namespace espalier;

namespace {

// Uniforms by the token path of the node and the number of the draw: trees that draw in another order draw the same.
struct path_chance {
  philox_chance base;
  const tree<>* drawn;

  std::uint32_t key(chance_key at) const {
    const tree_view view = *drawn;
    std::uint32_t k = static_cast<std::uint32_t>(at.slot) + 1;
    for (node_id u = at.node; u != root_node; u = view.parent[u])
      k = k * 1000003U + static_cast<std::uint32_t>(view.token[u]) + 7;
    return k % 1000000007U;
  }
  bool accept(double p, double q, chance_key at) { return base.accept(p, q, at); }
  template <Weights WeightsT>
  std::int32_t pick(const WeightsT& weights, chance_key at) {
    return base.pick(weights, {static_cast<node_id>(key(at)), 0, at.use});
  }
  std::int32_t index(std::int32_t n, chance_key at) { return base.index(n, at); }
};

std::vector<std::vector<token_id>> paths_of(tree_view view) {
  std::vector<std::vector<token_id>> paths;
  for (node_id u = 1; u < view.n_nodes; ++u) {
    std::vector<token_id> path;
    for (node_id a = u; a != root_node; a = view.parent[a])
      path.insert(path.begin(), view.token[a]);
    paths.push_back(path);
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// Rows of paths, about as unlike each other as those of a language model: some sure, some flat.
testing::row_drafter uneven_drafter(std::uint32_t seed, std::size_t vocab) {
  return testing::row_drafter(static_cast<std::int32_t>(vocab), [=](std::span<const token_id> path) {
    std::uint32_t key = seed * 977 + 13;
    for (const token_id t : path)
      key = key * 131 + static_cast<std::uint32_t>(t) + 5;
    std::mt19937 numbers(key);
    const double sharpness = 1 + static_cast<double>(numbers() % 8);
    std::vector<double> row(vocab);
    double total = 0;
    for (double& x : row)
      total += x = std::exp(sharpness * std::sqrt(-2 * std::log(static_cast<double>(1 + numbers() % 1000) / 1001)));
    for (double& x : row)
      x /= total;
    return row;
  });
}

tree<> threshold_tree(dyspec_threshold_options options, testing::row_drafter& drafter, std::uint32_t seed) {
  philox_chance chance(seed, 0, 0);
  return grow_below_none(dyspec_threshold(options), drafter, chance);
}

}  // namespace

TEST_CASE("with the value of the last draw as threshold, the layered tree is the greedy one") {
  int compared = 0;
  for (std::uint32_t seed = 0; seed < 200; ++seed) {
    testing::row_drafter drafter(40, [&](std::span<const token_id> path) {
      std::uint32_t key = seed;
      for (const token_id t : path)
        key = key * 131 + static_cast<std::uint32_t>(t) + 5;
      std::mt19937 numbers(key);
      std::vector<double> row(40);
      double total = 0;
      for (double& x : row)
        total += x = 0.01 + static_cast<double>(numbers() % 1000);
      for (double& x : row)
        x /= total;
      return row;
    });
    // The value of each draw follows from the tree: reach of the node, times what its earlier draws left.
    tree<> greedy_tree(12);
    greedy_tree.reset(-1);
    drafter.reserve(12);
    path_chance chance{philox_chance(seed, 0, 0), &greedy_tree};
    espalier::grow(dyspec_greedy({.budget = 12}), greedy_tree, drafter, chance);
    const tree_view view = greedy_tree;
    std::vector<double> reach(static_cast<std::size_t>(view.n_nodes), 1);
    double last = 1;
    for (node_id u = 0; u < view.n_nodes; ++u) {
      if (view.is_leaf(u)) continue;
      const auto row = drafter.rows().row(u);
      double value = reach[static_cast<std::size_t>(u)], left = 1;
      for (const node_id child : view.draws(u)) {
        last = std::min(last, value);
        const double share = row[static_cast<std::size_t>(view.token[child])] / left;
        reach[static_cast<std::size_t>(child)] = value * share;
        left -= row[static_cast<std::size_t>(view.token[child])];
        value *= 1 - share;
      }
    }
    const auto expected = paths_of(view);
    tree<> layered(200);
    layered.reset(-1);
    drafter.reserve(200);
    path_chance same{philox_chance(seed, 0, 0), &layered};
    espalier::grow(dyspec_threshold({.budget = 200, .max_depth = 60, .threshold = last * (1 - 1e-9), .adapt = false}),
                   layered, drafter, same);
    REQUIRE(paths_of(layered) == expected);
    ++compared;
  }
  CHECK(compared == 200);
}

TEST_CASE("a threshold that falls after the last level uses the budget, with as many draft passes") {
  constexpr int rounds = 30;
  for (const double threshold : {0.15, 0.08}) {
    double plain_draws = 0, filled_draws = 0;
    for (std::uint32_t seed = 0; seed < rounds; ++seed) {
      testing::row_drafter drafter = uneven_drafter(seed, 300);
      const tree<> plain = threshold_tree({.budget = 256, .threshold = threshold}, drafter, seed);
      const int passes = drafter.passes;
      const tree<> filled = threshold_tree({.budget = 256, .threshold = threshold, .fill = true}, drafter, seed);
      REQUIRE(drafter.passes == passes);
      // The filled tree begins with the other one.
      const tree_view a = plain, b = filled;
      REQUIRE(std::equal(a.parent, a.parent + a.n_nodes, b.parent));
      REQUIRE(std::equal(a.token, a.token + a.n_nodes, b.token));
      plain_draws += a.n_draws;
      filled_draws += b.n_draws;
    }
    std::cout << "threshold " << threshold << ": " << plain_draws / rounds << " of 256 draws on average, filled "
              << filled_draws / rounds << "\n";
    CHECK(filled_draws >= 0.95 * 256 * rounds);
    CHECK(plain_draws < 0.8 * 256 * rounds);
  }
}

TEST_CASE("what fills is drawn where it is most likely to be needed, of the nodes that were asked about") {
  int filled_draws = 0;
  for (std::uint32_t seed = 0; seed < 40; ++seed) {
    testing::row_drafter drafter = uneven_drafter(seed, 12);
    const int n_plain = threshold_tree({.budget = 90, .threshold = 0.03, .adapt = false}, drafter, seed).view().n_draws;
    const tree<> filled =
        threshold_tree({.budget = 90, .threshold = 0.03, .fill = true, .adapt = false}, drafter, seed);
    const tree_view view = filled;
    const auto rows = drafter.rows();
    std::vector<double> value(static_cast<std::size_t>(view.n_nodes), 0);
    value[0] = 1;
    std::vector<std::vector<double>> left(value.size());
    for (node_id u = 0; u < view.n_nodes; ++u) {
      if (rows.has(u)) left[static_cast<std::size_t>(u)].assign(rows.row(u).begin(), rows.row(u).end());
    }
    for (node_id child = 1; child < view.n_nodes; ++child) {  // each draw made a node
      const auto u = static_cast<std::size_t>(view.parent[child]);
      REQUIRE(rows.has(view.parent[child]));
      if (child > n_plain) {
        ++filled_draws;
        REQUIRE(value[u] < 0.03);
        for (node_id other = 0; other < child; ++other) {
          if (rows.has(other)) REQUIRE(value[static_cast<std::size_t>(other)] <= value[u] * (1 + 1e-9));
        }
      }
      double mass = 0;
      for (const double x : left[u])
        mass += x;
      double& probability = left[u][static_cast<std::size_t>(view.token[child])];
      value[static_cast<std::size_t>(child)] = value[u] * probability / mass;
      value[u] *= 1 - probability / mass;
      probability = 0;
      if (*std::max_element(left[u].begin(), left[u].end()) == 0) value[u] = 0;
    }
  }
  CHECK(filled_draws > 500);
}

TEST_CASE("filling ends where the rows end, and where the budget or the tree does") {
  // Two tokens a row, the second of probability 2^-40: the sure path goes down, all else is below any threshold.
  testing::row_drafter drafter(5, [](std::span<const token_id>) {
    return std::vector<double>{0, 1 - 0x1p-40, 0, 0x1p-40, 0};
  });
  const dyspec_threshold_options options{.budget = 64, .max_depth = 6, .threshold = 0.5, .fill = true};
  CHECK(threshold_tree(options, drafter, 1).view().n_draws == 12);
  CHECK(drafter.passes == 6);
  // A threshold that only the root's first draw can reach.
  testing::row_drafter flat(9, [](std::span<const token_id>) { return std::vector<double>(9, 1.0 / 9); });
  for (const int budget : {1, 4, 9, 20}) {
    const tree<> t = threshold_tree({.budget = budget, .threshold = 1, .fill = true}, flat, 2);
    CHECK(t.view().n_draws == std::min(budget, 9));
    CHECK(flat.passes == 1);
  }
  for (int limit = 0; limit < 12; ++limit) {
    tree<> t(64);
    t.reset(0, limit);
    drafter.reserve(64);
    philox_chance chance(3, 0, 0);
    espalier::grow(dyspec_threshold(options), t, drafter, chance);
    CHECK(t.view().n_draws == limit);
  }
  // A row of which nothing can be drawn.
  testing::row_drafter nothing(3, [](std::span<const token_id>) { return std::vector<double>(3, 0.0); });
  CHECK(threshold_tree(options, nothing, 4).view().n_draws == 0);
}

TEST_CASE("the threshold of later rounds spends the budget, on depth") {
  // Mean draws and depth of the last 40 of 60 rounds, whose rows differ.
  struct means {
    double draws, depth;
  };
  const auto grow_rounds = [&](dyspec_threshold policy) {
    means found{};
    for (std::uint32_t round = 0; round < 60; ++round) {
      testing::row_drafter rows = uneven_drafter(round, 300);
      philox_chance chance(round, 0, 0);
      tree<> drawn(policy.max_nodes());
      drawn.reset(-1);
      rows.reserve(policy.max_nodes());
      espalier::grow(policy, drawn, rows, chance);
      const tree_view view = drawn;
      if (round >= 20) {
        found.draws += view.n_draws / 40.0;
        found.depth += *std::max_element(view.depth, view.depth + view.n_nodes) / 40.0;
      }
      policy.observe(view, {root_node, 0});
    }
    return found;
  };
  for (const int budget : {16, 64}) {
    CAPTURE(budget);
    const means adapted = grow_rounds(dyspec_threshold({.budget = budget, .threshold = 0.0001}));
    const means bush = grow_rounds(dyspec_threshold({.budget = budget, .threshold = 0.0001, .adapt = false}));
    CHECK(adapted.draws > 0.6 * budget);
    CHECK(adapted.depth > 1.5 * bush.depth);
  }
}

TEST_CASE("a threshold is not lowered below the option, however much of the budget is left") {
  testing::row_drafter flat(9, [](std::span<const token_id>) { return std::vector<double>(9, 1.0 / 9); });
  dyspec_threshold policy({.budget = 64, .threshold = 0.5});
  for (std::uint32_t round = 0; round < 40; ++round) {
    philox_chance chance(round, 0, 0);
    tree<> drawn(64);
    drawn.reset(-1);
    flat.reserve(64);
    espalier::grow(policy, drawn, flat, chance);
    CHECK(drawn.view().n_draws == 5);  // the sixth draw is needed with probability 4 / 9
    policy.observe(drawn, {root_node, 0});
  }
}

TEST_CASE("a text begins with the first threshold again, and rounds without draws change nothing") {
  testing::row_drafter flat(9, [](std::span<const token_id>) { return std::vector<double>(9, 1.0 / 9); });
  dyspec_threshold policy({.budget = 8, .threshold = 0.01});
  const auto draws = [&](int limit) {
    tree<> t(64);
    t.reset(0, limit);
    flat.reserve(64);
    philox_chance chance(3, 0, 0);
    espalier::grow(policy, t, flat, chance);
    policy.observe(t, {root_node, 0});
    return t.view().n_draws;
  };
  CHECK(draws(64) == 6);  // 3 / 8 is the first threshold, and the seventh draw is needed with probability 3 / 9
  for (int round = 0; round < 30; ++round)
    CHECK(draws(0) == 0);
  CHECK(draws(64) == 6);
  for (int round = 0; round < 30; ++round)
    (void)draws(1);  // the tree's limit is spent, so the threshold rises
  CHECK(draws(64) < 6);
  policy.reset();
  CHECK(draws(64) == 6);
}
