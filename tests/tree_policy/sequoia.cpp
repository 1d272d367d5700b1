// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/sequoia.hpp"
#include "espalier/decoder/grow.hpp"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/testing/tree_policy_laws.hpp"
#include "raises.hpp"
#include "vectors.hpp"

using namespace espalier;

namespace {

using children_list = std::vector<std::int32_t>;

// Products of the acceptance rates along each path of a shape, the root's first; and the depth.
std::vector<double> products(const children_list& children, std::span<const double> acceptance, int& depth) {
  std::vector<double> product{1};
  std::vector<int> depths{0};
  for (std::size_t u = 0; u < children.size(); ++u) {
    for (std::size_t rank = 0; rank < static_cast<std::size_t>(children[u]); ++rank) {
      product.push_back(product[u] * acceptance[rank]);
      depths.push_back(depths[u] + 1);
    }
  }
  depth = depths.back();
  return product;
}

double sum(const std::vector<double>& list) {
  return std::accumulate(list.begin(), list.end(), 0.0);
}

// The best of all trees of n nodes below the root and at most so many levels, each tried.
double best_of_all(int n, int max_depth, std::span<const double> acceptance) {
  double best = 0;
  std::vector<int> parent{-1}, depth{0}, n_children{0};
  std::vector<double> product{1};
  const std::function<void()> add = [&] {
    const auto size = static_cast<int>(parent.size());
    if (size == n + 1) best = std::max(best, sum(product));
    if (size == n + 1) return;
    for (int u = 0; u < size; ++u) {
      const auto at = static_cast<std::size_t>(u);
      const auto rank = static_cast<std::size_t>(n_children[at]);
      if (depth[at] == max_depth || rank == acceptance.size()) continue;
      parent.push_back(u), depth.push_back(depth[at] + 1), n_children.push_back(0);
      product.push_back(product[at] * acceptance[rank]);
      ++n_children[at];
      add();
      --n_children[at];
      parent.pop_back(), depth.pop_back(), n_children.pop_back(), product.pop_back();
    }
  };
  add();
  return best;
}

testing::row_drafter flat_drafter(std::size_t vocab) {
  return testing::row_drafter(static_cast<std::int32_t>(vocab), [=](std::span<const token_id>) {
    return std::vector<double>(vocab, 1.0 / static_cast<double>(vocab));
  });
}

template <class ChanceT>
tree<> grow(sequoia policy, testing::row_drafter& drafter, ChanceT& chance, int limit = 1 << 20) {
  tree<> t(policy.max_nodes());
  t.reset(0, limit);
  drafter.reserve(policy.max_nodes());
  drafter.passes = 0;
  espalier::grow(policy, t, drafter, chance);
  return t;
}

}  // namespace

TEST_CASE("Sequoia's programme gives the tables of the vectors, and shapes that are worth what it says") {
  int compared = 0;
  const nlohmann::json vectors = load_vectors("builders.json");
  for (const auto& entry : vectors.at("sequoia")) {
    const auto by_count = entry["acc"].get<std::vector<double>>();
    const std::span<const double> acceptance = std::span(by_count).subspan(1);
    // The vectors count the root, in nodes and in levels.
    const std::int32_t budget = entry["budget"].get<std::int32_t>() - 1;
    const std::int32_t max_depth = entry["max_depth"].get<std::int32_t>() - 1;
    const sequoia_shapes shapes(acceptance, budget, max_depth);
    for (std::int32_t m = 0; m <= budget; ++m) {
      for (std::int32_t d = 0; d <= max_depth; ++d) {
        const auto& expected = entry["T"].at(static_cast<std::size_t>(m) + 1).at(static_cast<std::size_t>(d) + 1);
        INFO("m = " << m << ", depth " << d);
        ++compared;
        if (expected.is_null()) {
          REQUIRE(shapes.tokens(m, d) == 0);
          continue;
        }
        REQUIRE(std::abs(shapes.tokens(m, d) - expected.get<double>()) < 1e-9);
        const children_list shape = shapes.children(m, d);
        int depth = 0;
        REQUIRE(shape.size() == static_cast<std::size_t>(m) + 1);
        REQUIRE(std::accumulate(shape.begin(), shape.end(), 0) == m);
        REQUIRE(std::abs(sum(products(shape, acceptance, depth)) - shapes.tokens(m, d)) < 1e-12);
        REQUIRE(depth <= d);
      }
    }
  }
  CHECK(compared > 500);
}

TEST_CASE("no tree is better than the programme's, whether the rates fall with the rank or not") {
  const std::vector<std::vector<double>> lists{{0.6, 0.2, 0.1}, {0.2, 0.7, 0.05}, {0.1, 0.1, 0.9},
                                               {1, 0.5},        {0, 0.8},         {0.3}};
  for (const auto& acceptance : lists) {
    const sequoia_shapes shapes(acceptance, 7, 4);
    for (std::int32_t m = 0; m <= 7; ++m) {
      for (std::int32_t d = 0; d <= 4; ++d)
        REQUIRE(std::abs(shapes.tokens(m, d) - best_of_all(m, d, acceptance)) < 1e-12);
    }
  }
  // Where rates fall, the best large tree is that of the largest products.
  const std::vector<double> falling{0.7, 0.12, 0.06, 0.03, 0.02, 0.01};
  const sequoia_shapes shapes(falling, 200, 9);
  struct open_node {
    double product;
    std::size_t rank;
    int depth;
    double parent;
  };
  const auto less = [](const open_node& a, const open_node& b) { return a.product < b.product; };
  std::priority_queue<open_node, std::vector<open_node>, decltype(less)> open(less);
  open.push({falling[0], 0, 1, 1.0});
  double total = 1;
  for (std::int32_t m = 1; m <= 200; ++m) {
    const open_node next = open.top();
    open.pop();
    total += next.product;
    REQUIRE(std::abs(shapes.tokens(m, 9) - total) < 1e-9);
    if (next.rank + 1 < falling.size())
      open.push({next.parent * falling[next.rank + 1], next.rank + 1, next.depth, next.parent});
    if (next.depth < 9) open.push({next.product * falling[0], 0, next.depth + 1, next.product});
  }
}

TEST_CASE("of shapes of equal worth, few children come first, and descendants of earlier children") {
  const std::vector<double> halves{0.5, 0.25};
  CHECK(sequoia_shapes(halves, 2, 2).children(2, 2) == children_list{1, 1, 0});
  CHECK(sequoia_shapes(halves, 2, 1).children(2, 1) == children_list{2, 0, 0});
  const std::vector<double> alike{0.5, 0.5};
  CHECK(sequoia_shapes(alike, 3, 2).children(3, 2) == children_list{2, 1, 0, 0});
  CHECK(sequoia_shapes(alike, 0, 0).children(0, 0) == children_list{0});
}

TEST_CASE("the size that commits most leaves out what no acceptance rewards") {
  const std::vector<double> four{0.4, 0.3, 0.1, 0.05};
  CHECK(sequoia_shapes(four, 64, 1).best_size(1) == 4);
  CHECK(sequoia_shapes(four, 64, 2).best_size(2) == 20);
  CHECK(sequoia_shapes(four, 64, 3).best_size(3) == 64);
  const std::vector<double> one{0.5, 0};
  CHECK(sequoia_shapes(one, 9, 1).best_size(1) == 1);
  CHECK(sequoia_shapes(one, 9, 3).best_size(3) == 3);
}

TEST_CASE("the cheapest size and depth weigh passes against tokens") {
  const std::vector<double> acceptance{0.6, 0.2, 0.1};
  const sequoia_shapes shapes(acceptance, 30, 6);
  const auto check = [&](auto target, double draft) {
    const auto found = shapes.cheapest(target, draft);
    const auto seconds = [&](std::int32_t m, std::int32_t d) { return (target(m) + d * draft) / shapes.tokens(m, d); };
    for (std::int32_t m = 0; m <= 30; ++m) {
      for (std::int32_t d = 0; d <= 6; ++d) {
        if (shapes.tokens(m, d) > 0) REQUIRE(seconds(found.drafted, found.depth) <= seconds(m, d));
      }
    }
    return found;
  };
  const auto steady = [](std::int32_t) { return 1.0; };
  CHECK(check(steady, 0.0).drafted == 30);
  CHECK(check(steady, 0.0).depth == 6);
  CHECK(check(steady, 10.0).depth == 0);
  const auto found = check([](std::int32_t m) { return 1.0 + 0.05 * m; }, 0.1);
  CHECK(found.drafted > 1);
  CHECK(found.drafted < 30);
}

TEST_CASE("every round draws the same shape, one draft pass a level") {
  const sequoia policy({.budget = 40, .max_depth = 5});
  const children_list shape(policy.children().begin(), policy.children().end());
  CHECK(policy.max_nodes() == 40);
  testing::row_drafter drafter = flat_drafter(30);
  int depth = 0;
  products(shape, sequoia_options{}.acceptance, depth);
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    philox_chance chance(seed, 0, 0);
    const tree<> t = grow(policy, drafter, chance);
    const tree_view view = t;
    REQUIRE(view.n_draws == 40);
    REQUIRE(view.n_nodes == 41);
    REQUIRE(drafter.passes == depth);
    for (node_id u = 0; u < view.n_nodes; ++u) {
      std::int32_t n = 0;
      for (auto draw = view.draws(u).begin(); draw != view.draws(u).end(); ++draw)
        ++n;
      REQUIRE(n == shape[static_cast<std::size_t>(u)]);
    }
  }
}

TEST_CASE("the draws of a node are without replacement: every tree with its exact probability") {
  const std::vector<double> q{0.5, 0.3, 0.2};
  testing::row_drafter drafter(3, [&](std::span<const token_id>) { return q; });
  const std::vector<double> alike{0.5, 0.5};
  std::map<std::vector<token_id>, double> distribution;
  enumerating_chance chance;
  do {
    const tree<> t = grow(sequoia({.budget = 3, .max_depth = 2, .acceptance = alike}), drafter, chance);
    const tree_view view = t;
    REQUIRE(view.n_nodes == 4);
    distribution[{view.token[1], view.token[2], view.token[3]}] += chance.probability();
  } while (chance.next());
  CHECK(distribution.size() == 18);
  for (const auto& [tokens, probability] : distribution) {
    const double first = q[static_cast<std::size_t>(tokens[0])], second = q[static_cast<std::size_t>(tokens[1])];
    REQUIRE(tokens[0] != tokens[1]);
    REQUIRE(std::abs(probability - first * second / (1 - first) * q[static_cast<std::size_t>(tokens[2])]) < 1e-14);
  }
}

TEST_CASE("a row that has given all it can takes what hangs below with it") {
  const std::vector<double> alike{0.5, 0.5, 0.5};
  // One token after an even one, all after an odd one.
  testing::row_drafter drafter(4, [](std::span<const token_id> path) {
    return path.back() % 2 == 0 ? std::vector<double>{0, 1, 0, 0} : std::vector<double>(4, 0.25);
  });
  const sequoia policy({.budget = 39, .max_depth = 3, .acceptance = alike});
  REQUIRE(policy.max_nodes() == 39);
  philox_chance chance(2, 0, 0);
  const tree<> t = grow(policy, drafter, chance);
  const tree_view view = t;
  REQUIRE(drafter.passes == 3);
  for (node_id u = 0; u < view.n_nodes; ++u) {
    std::int32_t n = 0;
    for (auto draw = view.draws(u).begin(); draw != view.draws(u).end(); ++draw)
      ++n;
    REQUIRE(n == (view.depth[u] == 3 ? 0 : view.token[u] % 2 == 0 ? 1 : 3));
  }
  testing::row_drafter nothing(4, [](std::span<const token_id>) { return std::vector<double>(4, 0.0); });
  CHECK(grow(policy, nothing, chance).size() == 1);
}

TEST_CASE("a limit cuts the shape off, whatever is drawn") {
  testing::row_drafter drafter = flat_drafter(6);
  for (int limit = 0; limit <= 20; ++limit) {
    for (std::uint32_t seed = 0; seed < 5; ++seed) {
      philox_chance chance(seed, 0, 0);
      REQUIRE(grow(sequoia({.budget = 20}), drafter, chance, limit).view().n_draws == limit);
      if (limit == 0) REQUIRE(drafter.passes == 0);
    }
  }
}

TEST_CASE("TreePolicy laws: sequoia, small and large") {
  testing::check_tree_policy(sequoia());
  testing::check_tree_policy(sequoia({.budget = 1, .max_depth = 1}));
  testing::check_tree_policy(sequoia({.budget = 30, .max_depth = 1}));
  testing::check_tree_policy(sequoia({.budget = 30, .max_depth = 64}));
  const std::vector<double> late{0, 0.9};
  testing::check_tree_policy(sequoia({.budget = 12, .max_depth = 4, .acceptance = late}));
}

TEST_CASE("the largest programme is built, and what is out of range is an error") {
  const sequoia largest({.budget = 1024, .max_depth = 64});
  CHECK(largest.max_nodes() == 1024);
  const auto message = [](auto make) { return message_of<option_error>(make); };
  CHECK(says(message([] { sequoia({.budget = 0}); }), "budget is 0"));
  CHECK(says(message([] { sequoia({.budget = 1025}); }), "budget is 1025"));
  CHECK(says(message([] { sequoia({.max_depth = 0}); }), "max_depth is 0"));
  CHECK(says(message([] { sequoia({.max_depth = 65}); }), "max_depth is 65"));
  const std::vector<double> none, many(65, 0.1), negative{0.5, -0.1}, above{1.5}, nan{std::nan("")};
  CHECK(says(message([&] { sequoia({.acceptance = none}); }), "number of acceptance rates is 0"));
  CHECK(says(message([&] { sequoia({.acceptance = many}); }), "a list of numbers has 65 of them; it may have 64"));
  CHECK(says(message([&] { sequoia({.acceptance = negative}); }), "acceptance rate is -0.1"));
  CHECK(says(message([&] { sequoia({.acceptance = above}); }), "acceptance rate is 1.5"));
  CHECK(says(message([&] { sequoia({.acceptance = nan}); }), "acceptance rate is", "nan"));
}
