// SPDX-License-Identifier: BSL-1.0
#include "espalier/tree_policy/cost_aware/round_budget.hpp"

#include <cstdint>
#include <vector>

#include "catch.hpp"
#include "espalier/cost/cost_curve.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/tree_policy/cost_aware/text_budget.hpp"

using namespace espalier;

namespace {

const cost_model usual{{}, {}, {}, cost_curve::linear(0.5, 0.25), cost_curve::linear(2, 1)};

// A text gains this from each further level.
round_budget::gains same_for_each(double of_level) {
  round_budget::gains gains{};
  for (std::size_t m = 0; m < gains.size(); ++m)
    gains[m] = static_cast<double>(m + 1) * of_level;
  return gains;
}

}  // namespace

TEST_CASE("the price is the rate of the last rounds, and that of plain decoding at least") {
  round_budget budget(usual, 8);
  // At first, twice that.
  budget.begin(1, 0);
  CHECK(budget.of_rows(0) == 0);
  CHECK(budget.of_rows(3) == Approx(3));
  CHECK(budget.of_pass(3) == Approx(1));
  // Rounds of six tokens in 0.5 + 2 seconds.
  for (int i = 0; i < 400; ++i) {
    budget.begin(1, 0);
    budget.add_nodes(0, 1);
    budget.add_tokens(6);
    CHECK(budget.round_seconds() == Approx(2.5));
    budget.end();
  }
  CHECK(budget.tokens_per_second() == Approx(2.4));
  budget.begin(1, 0);
  CHECK(budget.of_rows(3) == Approx(3 * 2.4));
  // Rounds that take long and give little count as plain ones; what they wrote is read in one pass.
  for (int i = 0; i < 400; ++i) {
    budget.begin(1, 0);
    budget.add_rows(8);
    budget.add_tokens(1);
    budget.end();
  }
  CHECK(budget.tokens_per_second() == Approx(0.1));
  budget.begin(1, 0);
  CHECK(budget.of_rows(3) == Approx(1.5));
  CHECK(budget.of_pass(2) == Approx(0.5 * 0.75));
  budget.add_nodes(0, 1, 400);
  CHECK(budget.round_seconds() == Approx(0.5 + 400 * 0.25 + 2));
}

TEST_CASE("the budget tells what a round has gained, and whether any can") {
  cost_model costs = usual;
  costs.opening = 1;
  round_budget budget(costs, 8);
  budget.begin(1, 0);
  budget.add_nodes(0, 1);
  budget.add_rows(1);
  CHECK(budget.gain(2, budget.seconds_of(std::vector<std::int32_t>{1}, 1)) == Approx(2 - 4.5 / 2));
  CHECK(budget.gain(1, budget.seconds_of({}, 0)) == Approx(0));
  // Each token saves 2 seconds and takes 1.5; a second opens the round.
  CHECK(!budget.can_gain(0));
  CHECK(!budget.can_gain(2));
  CHECK(budget.can_gain(3));
  costs.opening = 4.5;
  budget = round_budget(costs, 8);
  budget.begin(1, 0);
  CHECK(!budget.can_gain(8));
}

TEST_CASE("texts pay together for the passes that they share") {
  // A row costs as much as a plain token beyond four rows, and next to nothing before.
  const cost_model costs{{}, {}, {}, cost_curve::linear(0.5, 0.01), cost_curve::of_grid({1, 4, 8}, {0}, {1, 1.03, 5})};
  round_budget budget(costs, 8);
  budget.begin(1, 0);
  CHECK(budget.of_rows(3) == Approx(2 * 0.03));
  CHECK(budget.can_gain(3));
  budget.begin(4, 0);
  // Four texts already have four rows.
  CHECK(budget.of_rows(1) > 0.99 * 2 * 4 / 1.03);
  CHECK(!budget.can_gain(8));
  // The rows of prompts count as others', and the texts that read them will write.
  budget.begin(2, 0, 1, 4);
  CHECK(budget.of_rows(1) > 0.99 * 2 * 3 / costs.target_pass(3, 0));

  // One text alone gains too little from a pass, two of them enough.
  budget = round_budget(usual, 8);
  budget.begin(3, 0);
  const double pass = budget.of_pass(1) * 3 / usual.draft_pass(3, 0) * usual.draft_pass(1, 0);
  budget.offer(same_for_each(0.6 * pass));
  CHECK(budget.decide() == 0);
  budget.offer(same_for_each(0.6 * pass));
  budget.offer(same_for_each(-9));
  budget.offer(same_for_each(1.5 * pass));
  CHECK(budget.decide() > 0);
  // What is shared out is what the round took beyond plain decoding.
  budget.add_nodes(0, 2, 1);
  budget.add_nodes(0, 1);
  budget.add_nodes(1, 1);
  budget.add_rows(3);
  budget.add_rows(1);
  const std::vector<std::int32_t> first{3, 1}, second{1};
  CHECK(budget.seconds_of(first, 3) + budget.seconds_of(second, 1) ==
        Approx(budget.round_seconds() - usual.target_pass(3, 0)));
  CHECK(budget.seconds_of(first, 3) > 3 * budget.seconds_of(second, 1));
}

TEST_CASE("each further text costs the reading of its own context") {
  // After 100 tokens a pass takes a second more, however many rows it has.
  const auto curve = [](double row) { return cost_curve::of_grid({1, 9}, {0, 100}, {1, 2, 1 + 8 * row, 2 + 8 * row}); };
  round_budget budget(cost_model{{}, {}, {}, curve(0.5), curve(0.25)}, 8);
  budget.begin(4, 100);
  const double plain_seconds = 2 + 3 * 0.25 + 3, rate = 4 / plain_seconds;
  CHECK(budget.round_seconds() == Approx(plain_seconds));
  CHECK(budget.of_rows(1) == Approx(2 * rate * 0.25));
  CHECK(budget.of_pass(1) == Approx(2 * rate * (2 + 3 * 0.5 + 3) / 4));
  CHECK(budget.of_nodes(2) == Approx(2 * rate * 0.5));
  budget.add_nodes(0, 1);
  budget.add_nodes(0, 1);
  CHECK(budget.round_seconds() == Approx(plain_seconds + 2.5 + 1));
  budget.begin(4, 100);
  budget.add_nodes(0, 2);  // of one text
  CHECK(budget.round_seconds() == Approx(plain_seconds + 2.5));
  budget.begin(1, 100);
  CHECK(budget.round_seconds() == 2);
}

TEST_CASE("the price of a row is that beside as many others as texts lately had") {
  const cost_model costs{{}, {}, {}, cost_curve::linear(0.1, 0), cost_curve::of_grid({1, 16, 17}, {0}, {1, 1, 9})};
  round_budget budget(costs, 8);
  budget.begin(4, 0);
  CHECK(budget.of_rows(4) == 0);
  for (int i = 0; i < 60; ++i) {
    budget.begin(4, 0);
    budget.add_rows(16);
    budget.add_tokens(8);
    budget.end();
  }
  budget.begin(4, 0);
  CHECK(budget.of_rows(1) > 1);
  budget.begin(1, 0);
  CHECK(budget.of_rows(8) == 0);
}

TEST_CASE("what is written while the draft cannot be asked is not charged to the text") {
  text_budget text(usual, 8, 4);
  const auto first_pass = [&] {
    text.open({.length = 1});
    text.begin(8);
    text.ask(1);
    const double seconds = text.now().round_seconds();
    text.end(0, 1);
    return seconds;
  };
  const double alone = first_pass();
  const auto write_100 = [&](std::int32_t limit) {
    text.open({.length = 1});
    text.begin(limit);
    text.end(0, 100);
  };
  write_100(0);
  CHECK(first_pass() == alone);
  write_100(8);
  CHECK(first_pass() == Approx(alone + 100 * 0.25));
  CHECK(first_pass() == alone);
}

TEST_CASE("a round is of the budget that it shares, and the next one is the text's own") {
  text_budget text(usual, 8, 4);
  round_budget shared(usual, 8);
  text.open({.length = 1});
  text.join(shared);
  shared.begin(4, 0);
  text.begin(8);
  CHECK(&text.now() == &shared);
  text.ask(2);
  CHECK(shared.round_seconds() == Approx(usual.draft_pass(2, 0) + usual.target_pass(4, 0)));
  text.end(0, 1);
  CHECK(&text.now() == &text.own());
}
