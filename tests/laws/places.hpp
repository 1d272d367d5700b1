// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <set>
#include <tuple>
#include <vector>

#include "catch.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "tree_policy/row_drafter.hpp"

// Philox, and every place that it was asked at. A place used twice would give two decisions the same number, which no
// enumeration can see. A draw that found no weight has decided nothing.
struct recorded_chance {
  espalier::philox_chance chance;
  bool drafting = true;
  std::set<std::tuple<espalier::node_id, std::int32_t, espalier::purpose>> used{};
  int asked = 0;

  void record(espalier::place at) {
    ++asked;
    REQUIRE((at.use == espalier::purpose::draft) == drafting);
    REQUIRE(used.insert({at.node, at.slot, at.use}).second);
  }
  bool accept(double p, double q, espalier::place at) {
    record(at);
    return chance.accept(p, q, at);
  }
  template <espalier::Weights WeightsT>
  std::int32_t pick(const WeightsT& weights, espalier::place at) {
    const std::int32_t i = chance.pick(weights, at);
    if (i >= 0) record(at);
    return i;
  }
  std::int32_t index(std::int32_t n, espalier::place at) {
    record(at);
    return chance.index(n, at);
  }
};

// The law of places: in one round, drafting and verifying use every place once at most.
template <class PolicyT, class VerifierT>
void check_places(PolicyT policy, VerifierT verifier) {
  using namespace espalier;
  constexpr std::int32_t vocab = 6;
  const auto row_of = [](std::uint32_t key) {
    std::vector<double> row(vocab);
    double total = 0;
    for (double& x : row)
      total += x = 1 + static_cast<double>((key = key * 1664525U + 1013904223U) >> 28);
    for (double& x : row)
      x /= total;
    return row;
  };
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    row_drafter drafter(vocab, [&](std::span<const token_id> path) {
      return row_of(seed + 7 * static_cast<std::uint32_t>(path.size()) + static_cast<std::uint32_t>(path.back()));
    });
    drafter.reserve(most_asked(policy));
    recorded_chance chance{philox_chance(seed, 0, 0)};
    tree<> t(most_asked(policy));
    t.reset(0);
    policy.grow(t, drafter, chance);
    chance.drafting = false;
    struct {
      std::vector<std::vector<double>> rows;
      std::span<const double> row(node_id u) const { return rows[static_cast<std::size_t>(u)]; }
      token_id argmax(node_id) const { return 0; }
    } target;
    for (node_id u = 0; u < t.size(); ++u)
      target.rows.push_back(row_of(1000 * seed + static_cast<std::uint32_t>(u)));
    verifier.verify(t.view(), drafter.rows(), target, chance);
  }
}
