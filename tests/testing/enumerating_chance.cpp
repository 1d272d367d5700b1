// SPDX-License-Identifier: BSL-1.0
#include "espalier/testing/enumerating_chance.hpp"

#include <cmath>
#include <map>
#include <span>
#include <vector>

#include "catch.hpp"

using namespace espalier;

TEST_CASE("the enumerator visits every outcome once with its probability") {
  enumerating_chance chance;
  std::map<std::vector<int>, double> distribution;
  int runs = 0;
  do {
    std::vector<int> outcome;
    outcome.push_back(chance.accept(0.3, 0.4) ? 1 : 0);
    if (outcome[0] == 1) {
      outcome.push_back(chance.index(3));
    } else {
      const std::vector<double> weights{1, 0, 3};
      outcome.push_back(chance.pick(std::span<const double>(weights)));
      outcome.push_back(chance.accept(0, 1) ? 1 : 0);
      outcome.push_back(chance.accept(2, 1) ? 1 : 0);
    }
    REQUIRE(distribution.find(outcome) == distribution.end());
    distribution[outcome] = chance.probability();
    ++runs;
  } while (chance.next());
  CHECK(runs == 5);
  double sum = 0;
  for (const auto& [outcome, probability] : distribution)
    sum += probability;
  CHECK(std::abs(sum - 1) < 1e-15);
  CHECK(std::abs(distribution[{1, 2}] - 0.25) < 1e-15);
  CHECK(std::abs(distribution[{0, 0, 0, 1}] - 0.0625) < 1e-15);
  CHECK(std::abs(distribution[{0, 2, 0, 1}] - 0.1875) < 1e-15);
}

TEST_CASE("the enumerator handles procedures without chance and weights without mass") {
  enumerating_chance none;
  CHECK(none.probability() == 1.0);
  CHECK_FALSE(none.next());
  enumerating_chance chance;
  const std::vector<float> zero(3, 0.0F);
  CHECK(chance.pick(std::span<const float>(zero)) == -1);
  CHECK_FALSE(chance.accept(0.0, 0.0));
  CHECK(chance.accept(0.5, 0.0));
  CHECK_FALSE(chance.next());
}
