// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "catch.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "tree_policy/row_drafter.hpp"

// The laws of TreePolicy: order, budget, rows; and for a deterministic regime, that no token is preferred to a better one.
template <class PolicyT>
void check_tree_policy_laws(PolicyT policy) {
  using namespace espalier;
  REQUIRE(policy.max_nodes() >= 0);
  std::mt19937 random(4);
  std::int32_t most_draws = 0;
  for (int round = 0; round < 60; ++round) {
    const auto seed = static_cast<std::uint32_t>(round);
    const int sharpness = round % 4;
    row_drafter drafter(7, [&](std::span<const token_id> path) {
      std::uint32_t key = seed;
      for (const token_id t : path)
        key = key * 131 + static_cast<std::uint32_t>(t) + 1;
      std::mt19937 numbers(key);
      std::vector<double> row(7);
      double total = 0;
      for (double& p : row)
        total += p = std::pow(static_cast<double>(numbers() % 6), sharpness + 1);
      if (total == 0) total = row[numbers() % 7] = 1;
      for (double& p : row)
        p /= total;
      return row;
    });
    drafter.reserve(most_asked(policy));
    // The budget is the policy's or the tree's, whichever is less.
    tree<> t(most_asked(policy) + 9);
    const int limit = round % 3 == 0 ? round / 3 : most_asked(policy) + round % 10;
    t.reset(3, limit);
    philox_chance chance(1, 0, seed);
    policy.grow(t, drafter, chance);
    const tree_view view = t;
    REQUIRE(drafter.lawful);
    if (round % 3 != 0 && sharpness == 0) most_draws = std::max(most_draws, view.n_draws);
    REQUIRE(view.n_draws <= std::min(limit, policy.max_nodes()));
    REQUIRE(view.token[0] == 3);
    const auto rows = drafter.rows();
    for (node_id u = 0; u < view.n_nodes; ++u) {
      if (u > 0) REQUIRE(view.parent[u] < u);
      if (view.is_leaf(u)) continue;
      REQUIRE(rows.has(u));
      const auto row = rows.row(u);
      double least = 1;
      std::vector<char> drafted(row.size(), 0);
      for (const node_id child : view.draws(u)) {
        REQUIRE(view.parent[child] == u);
        const double p = row[static_cast<std::size_t>(view.token[child])];
        REQUIRE(p > 0);
        REQUIRE(std::abs(static_cast<double>(view.log_prob[child]) - std::log(p)) < 1e-6);
        drafted[static_cast<std::size_t>(view.token[child])] = 1;
        least = std::min(least, p);
      }
      if (PolicyT::sampling == regime::deterministic) {
        for (std::size_t token = 0; token < row.size(); ++token)
          REQUIRE((drafted[token] != 0 || row[token] <= least));
      }
    }
    const auto accepted = static_cast<node_id>(random() % static_cast<unsigned>(view.n_nodes));
    policy.observe(view, {accepted, 0});
  }
  REQUIRE((most_draws > 0) == (policy.max_nodes() > 0));
}
