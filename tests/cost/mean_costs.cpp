// SPDX-License-Identifier: BSL-1.0
// Within the grid the mean of costs predicts the mean of what each of them predicts.
#include "espalier/cost/mean_costs.hpp"

#include <cstdint>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "raises.hpp"

using namespace espalier;

namespace {

cost_model costs_of(cost_curve draft_pass, cost_curve target_pass, double opening) {
  return {"machine", "target", "draft", std::move(draft_pass), std::move(target_pass), opening};
}

cost_model slow() {
  return costs_of(cost_curve::of_grid({1, 64}, {0, 100}, {1, 2, 64, 65}),
                  cost_curve::of_grid({1, 4, 8}, {0}, {1000, 1001, 1500}), 0.5);
}

cost_model fast() {
  return costs_of(cost_curve::of_grid({1, 64}, {0, 100}, {3, 3, 8, 9}),
                  cost_curve::of_grid({1, 4, 8}, {0}, {400, 600, 600}), 2);
}

}  // namespace

TEST_CASE("the mean of costs predicts the mean of their rounds") {
  const std::vector<cost_model> both{slow(), fast()};
  const cost_model mean = mean_costs(both);
  CHECK(mean.hardware == "machine");
  CHECK(mean.target == "target");
  CHECK(mean.draft == "draft");
  CHECK(mean.opening == 1.25);
  for (const std::int32_t context : {0, 60, 100}) {
    for (const std::int32_t rows : {1, 2, 4, 7, 8}) {
      const std::vector<std::int32_t> drafts{1, rows};
      CHECK(mean.round(drafts, rows, context) ==
            Approx((slow().round(drafts, rows, context) + fast().round(drafts, rows, context)) / 2).epsilon(1e-12));
    }
  }
}

TEST_CASE("the mean of one is that one") {
  const cost_model costs = slow();
  CHECK(mean_costs({&costs, 1}) == costs);
}

TEST_CASE("beyond the grid the mean of costs predicts at most the mean of their rounds") {
  const auto of = [](double after_none, double after_100) {
    cost_model costs = slow();
    costs.draft_pass = cost_curve::of_grid({1, 2}, {0, 100}, {1, 1, 1 + after_none, 1 + after_100});
    return costs;
  };
  const std::vector<cost_model> both{of(2, 2), of(1, 3)};
  const cost_model mean = mean_costs(both);
  for (const std::int32_t context : {0, 50, 100, 200})
    CHECK(mean.draft_pass(10, context) <=
          (both[0].draft_pass(10, context) + both[1].draft_pass(10, context)) / 2 + 1e-12);
}

TEST_CASE("costs without a common mean are refused") {
  CHECK(says(message_of<input_error>([] { mean_costs({}); }), "no costs"));
  const auto refused = [](const auto& alter) {
    std::vector<cost_model> both{slow(), fast()};
    alter(both[1]);
    return message_of<input_error>([&] { mean_costs(both); });
  };
  CHECK(says(refused([](cost_model& c) { c.hardware = "other"; }), "hardware", "\"machine\"", "\"other\""));
  CHECK(says(refused([](cost_model& c) { c.target = "other"; }), "target model", "\"target\"", "\"other\""));
  CHECK(says(refused([](cost_model& c) { c.draft = ""; }), "draft model", "\"draft\"", "\"\""));
}

TEST_CASE("costs that were measured in other sizes have a mean in the first one's") {
  std::vector<cost_model> both{slow(), fast()};
  both[1].target_pass = cost_curve::linear(500, 100);
  both[1].draft_pass = cost_curve::of_grid({1, 32, 64}, {0, 50, 200}, {1, 2, 3, 4, 5, 6, 7, 8, 9});
  const cost_model mean = mean_costs(both);
  CHECK(std::ranges::equal(mean.target_pass.rows(), slow().target_pass.rows()));
  for (const std::int32_t rows : {1, 4, 8})
    CHECK(mean.target_pass(rows, 0) == Approx((slow().target_pass(rows, 0) + 400 + 100 * rows) / 2));
  CHECK(mean.draft_pass(64, 100) == Approx((65 + both[1].draft_pass(64, 100)) / 2));
}
