// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/cost_aware/throughput_price.hpp"

#include "catch.hpp"
#include "espalier/cost/cost_curve.hpp"
#include "espalier/cost/cost_model.hpp"

using namespace espalier;

TEST_CASE("the price is the rate of the last rounds, and that of plain decoding at least") {
  const cost_model costs{{}, {}, {}, cost_curve::linear(0.5, 0.25), cost_curve::linear(2, 1)};
  throughput_price price(costs, 8);
  // At first, twice that.
  price.begin_round(8);
  CHECK(price.of_rows(0) == 0);
  CHECK(price.of_rows(3) == Approx(3));
  CHECK(price.of_pass(3) == Approx(1));
  // Rounds of six tokens in 0.5 + 2 seconds.
  for (int i = 0; i < 400; ++i) {
    price.begin_round(8);
    price.add_pass(1);
    price.end_round(0);
    price.observe(6);
  }
  CHECK(price.tokens_per_second() == Approx(2.4));
  CHECK(price.round_seconds() == Approx(2.5));
  price.begin_round(8);
  CHECK(price.of_rows(3) == Approx(3 * 2.4));
  // Rounds that take long and give little count as plain ones; what they wrote is read in one pass.
  for (int i = 0; i < 400; ++i) {
    price.begin_round(8);
    price.end_round(8);
    price.observe(1);
  }
  CHECK(price.tokens_per_second() == Approx(0.1));
  price.begin_round(8);
  CHECK(price.of_rows(3) == Approx(1.5));
  CHECK(price.of_pass(2) == Approx(0.5 * 0.75));
  price.add_pass(1);
  price.end_round(0);
  CHECK(price.round_seconds() == Approx(0.5 + 400 * 0.25 + 2));
}

TEST_CASE("the price tells what a round has gained, and whether any can") {
  cost_model costs{{}, {}, {}, cost_curve::linear(0.5, 0.25), cost_curve::linear(2, 1)};
  costs.opening = 1;
  throughput_price price(costs, 8);
  price.begin_round(8);
  price.add_pass(1);
  price.end_round(1);
  price.observe(2);
  CHECK(price.gain() == Approx(2 - 4.5 / 2));
  price.begin_round(8);
  price.end_round(0);
  price.observe(1);
  CHECK(price.gain() == Approx(0));
  // Each token saves 2 seconds and takes 1.5; a second opens the round.
  price.begin_round(8);
  CHECK(!price.can_gain(0));
  CHECK(!price.can_gain(2));
  CHECK(price.can_gain(3));
  costs.opening = 4.5;
  price = throughput_price(costs, 8);
  price.begin_round(8);
  CHECK(!price.can_gain(8));
}
