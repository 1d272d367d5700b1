// SPDX-License-Identifier: BSL-1.0
// DySpec's greedy trees, and what both of its policies have in common.
#include "espalier/tree_policy/dyspec_greedy.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/row_drafter.hpp"
#include "espalier/testing/script_chance.hpp"
#include "espalier/tree_policy/dyspec_threshold.hpp"
#include "tree_policy/grow_below_none.hpp"
#include "vectors.hpp"

using namespace espalier;

namespace {

testing::row_drafter markov_drafter(const std::vector<std::vector<double>>& q) {
  return testing::row_drafter(static_cast<std::int32_t>(q[0].size()), [q](std::span<const token_id> path) {
    return path.size() == 1 ? q[0] : q[static_cast<std::size_t>(path.back()) + 1];
  });
}

template <class PolicyT>
void check_tree(const nlohmann::json& expected, PolicyT policy, testing::row_drafter& drafter) {
  const auto uniforms = expected["u"].get<std::vector<double>>();
  script_chance chance(uniforms);
  const tree<> t = grow_below_none(policy, drafter, chance);
  const tree_view view = t;
  REQUIRE(chance.used() == uniforms.size());
  REQUIRE(std::vector<node_id>(view.parent, view.parent + view.n_nodes) ==
          expected["parents"].get<std::vector<node_id>>());
  REQUIRE(std::vector<token_id>(view.token, view.token + view.n_nodes) ==
          expected["tokens"].get<std::vector<token_id>>());
}

}  // namespace

TEST_CASE("DySpec's trees are those of the vectors") {
  for (const auto& entry : load_vectors("dyspec.json")) {
    testing::row_drafter drafter = markov_drafter(entry["markov"]["Q"].get<std::vector<std::vector<double>>>());
    for (const auto& expected : entry["greedy"]) {
      INFO("m = " << expected["m"]);
      check_tree(expected, dyspec_greedy({.budget = expected["m"]}), drafter);
    }
    for (const auto& expected : entry["threshold"]) {
      INFO("threshold " << expected["threshold"]);
      check_tree(expected,
                 dyspec_threshold({.budget = expected["max_nodes"],
                                   .max_depth = expected["max_depth"],
                                   .threshold = expected["threshold"],
                                   .adapt = false}),
                 drafter);
    }
  }
}

TEST_CASE("no child is drawn twice, and the budget is used where the draft can give it") {
  std::mt19937 random(5);
  for (int round = 0; round < 100; ++round) {
    const auto seed = static_cast<std::uint32_t>(random());
    testing::row_drafter drafter(9, [&](std::span<const token_id> path) {
      std::mt19937 numbers(seed + static_cast<std::uint32_t>(path.size()) * 31 +
                           static_cast<std::uint32_t>(path.back()));
      std::vector<double> row(9);
      double total = 0;
      for (double& x : row)
        total += x = std::pow(static_cast<double>(numbers() % 7), 1 + round % 6);
      if (total == 0) total = row[0] = 1;
      for (double& x : row)
        x /= total;
      return row;
    });
    philox_chance chance(seed, 0, 0);
    const tree<> t = grow_below_none(dyspec_greedy({.budget = 40}), drafter, chance);
    REQUIRE(t.full());
    REQUIRE(t.size() == 41);
    const tree<> layers = grow_below_none(
        dyspec_threshold({.budget = 40, .max_depth = 9, .threshold = 0.001, .adapt = false}), drafter, chance);
    REQUIRE(layers.view().n_draws == layers.size() - 1);
    REQUIRE(drafter.passes <= 9);
  }
}
