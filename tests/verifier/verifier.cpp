// SPDX-License-Identifier: BSL-1.0
#include <cmath>
#include <map>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/core/enumerating_chance.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "random_tree.hpp"

using namespace espalier;

namespace {

// Target rows that count who was asked for.
struct counted_rows {
  std::vector<std::vector<double>> law;
  std::vector<int> asked = std::vector<int>(law.size(), 0);
  std::span<const double> row(node_id u) {
    ++asked[static_cast<std::size_t>(u)];
    return law[static_cast<std::size_t>(u)];
  }
  token_id argmax(node_id u) {
    const auto r = row(u);
    return static_cast<token_id>(std::max_element(r.begin(), r.end()) - r.begin());
  }
};

counted_rows random_rows(int n, int vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::vector<double>> law(static_cast<std::size_t>(n));
  for (auto& row : law) {
    double total = 0;
    for (int t = 0; t < vocab; ++t) {
      row.push_back(static_cast<double>(random() % 5));
      total += row.back();
    }
    if (total == 0) total = row[0] = 1;
    for (double& p : row)
      p /= total;
  }
  return {std::move(law)};
}

}  // namespace

TEST_CASE("greedy follows the target's argmax and asks for the rows of the path alone") {
  for (std::uint32_t seed = 0; seed < 50; ++seed) {
    const tree<> t = random_tree(40, seed, 4, 0.3);
    const tree_view view = t;
    counted_rows target = random_rows(40, 4, seed);
    counted_rows reference = target;
    philox_chance chance(0, 0, 0);
    const verdict v = greedy().verify(view, 0, target, chance);
    std::vector<int> expected(40, 0);
    for (const node_id u : path_to(view, v.accepted)) {
      expected[static_cast<std::size_t>(u)] = 1;
      if (u != root_node) REQUIRE(view.token[u] == reference.argmax(view.parent[u]));
    }
    REQUIRE(v.token == reference.argmax(v.accepted));
    REQUIRE(view.find_child(v.accepted, v.token) == no_node);
    REQUIRE(target.asked == expected);
  }
}

TEST_CASE("target_only's verdicts have the probabilities of the target's own walks") {
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const tree<> t = random_tree(9, seed, 3, 0.4);
    const tree_view view = t;
    counted_rows target = random_rows(9, 3, seed);
    std::map<std::pair<node_id, token_id>, double> law;
    enumerating_chance chance;
    do {
      const verdict v = target_only().verify(view, 0, target, chance);
      law[{v.accepted, v.token}] += chance.probability();
    } while (chance.next());
    double total = 0;
    for (node_id u = 0; u < view.n_nodes; ++u) {
      double reach = 1;
      for (const node_id a : path_to(view, u)) {
        if (a != root_node)
          reach *= target.law[static_cast<std::size_t>(view.parent[a])][static_cast<std::size_t>(view.token[a])];
      }
      for (token_id x = 0; x < 3; ++x) {
        if (view.find_child(u, x) != no_node) {
          REQUIRE(law.count({u, x}) == 0);  // it would have walked on
          continue;
        }
        const double expected = reach * target.law[static_cast<std::size_t>(u)][static_cast<std::size_t>(x)];
        const auto found = law.find({u, x});
        REQUIRE(std::abs((found == law.end() ? 0.0 : found->second) - expected) < 1e-12);
        total += expected;
      }
    }
    REQUIRE(std::abs(total - 1) < 1e-12);
  }
}

TEST_CASE("a row without its drawn tokens sums and draws as one where they are zero, bit for bit") {
  std::mt19937 random(5);
  for (const std::size_t n : {1U, 40U, 1024U, 5000U, 300000U}) {
    std::vector<float> row(n);
    for (float& x : row)
      x = static_cast<float>(random() % 1000) / 1e6F;
    tree<> drawn(30);
    drawn.reset(0);
    std::vector<float> left = row;
    while (!drawn.full() && drawn.size() <= static_cast<std::int32_t>(n)) {
      const auto t =
          static_cast<std::size_t>(drawn.size() % 2 == 0 ? random() % n : random() % std::min<std::size_t>(n, 70));
      drawn.draw(root_node, static_cast<token_id>(t), 0);
      left[t] = 0;
      const undrawn weights(drawn.view(), root_node, std::span<const float>(row));
      REQUIRE(detail::mass(weights) == detail::mass(left));
      for (const double u : {0.0, 0.4, 0.999, 1.0})
        REQUIRE(detail::categorical(weights, u) == detail::categorical(left, u));
    }
  }
}

TEST_CASE("the longest path is traversed without recursion") {
  const int n = 200000;
  tree<> path(n);
  path.reset(0);
  for (node_id u = 0; u < n; ++u)
    path.append(u, u % 2, 0);
  // Where draft and target agree, all is accepted; where they do not, the walk comes back a long way.
  struct one_row {
    std::vector<double> law;
    static bool has(node_id) { return true; }
    std::span<const double> row(node_id) const { return law; }
  };
  for (const double p : {0.5, 0.999999}) {
    const one_row draft{{0.5, 0.5}};
    one_row target{{p, 1 - p}};
    philox_chance chance(2, 0, 0);
    const verdict v = traversal().verify(path, draft, target, chance);
    CHECK((p == 0.5) == (v.accepted == n));
  }
}

TEST_CASE("specinfer tests each draw once, in every order") {
  tree<> t(4);
  t.reset(0);
  for (const token_id x : {0, 1, 1, 2})
    t.draw(root_node, x, 0);
  struct one_row {
    std::vector<double> law;
    static bool has(node_id) { return true; }
    std::span<const double> row(node_id) const { return law; }
  };
  // Nothing of the target is in the tree: all draws fail.
  const one_row draft{{0.4, 0.3, 0.3, 0}};
  one_row target{{0, 0, 0, 1}};
  enumerating_chance chance;
  int orders = 0;
  do {
    REQUIRE(specinfer().verify(t, draft, target, chance) == verdict{root_node, 3});
    ++orders;
  } while (chance.next());
  CHECK(orders == 24);
}
