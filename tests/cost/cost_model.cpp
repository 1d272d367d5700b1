// SPDX-License-Identifier: BSL-1.0
// The price of a tree is that of its passes.
#include "espalier/cost/cost_model.hpp"

#include <cstdint>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/testing/random_tree.hpp"

using namespace espalier;

namespace {

cost_model made_up_model() {
  return {.hardware = "none",
          .target = "target",
          .draft = "draft",
          .draft_pass = cost_curve::of_grid({1, 64}, {0, 100}, {1, 2, 64, 65}),
          .target_pass = cost_curve::linear(1000, 7),
          .opening = 0.5};
}

}  // namespace

TEST_CASE("a round costs its passes") {
  const cost_model costs = made_up_model();
  CHECK(costs.round({}, 1, 0) == 1000);
  CHECK(costs.round(std::vector<std::int32_t>{1, 3, 2}, 6, 0) == 1035.5 + 1 + 3 + 2);
  CHECK(costs.round(std::vector<std::int32_t>{1, 3, 2}, 6, 100) == 1035.5 + 2 + 4 + 3);
}

TEST_CASE("without a draft, drafting costs nothing, and the target what it does") {
  const cost_model costs = made_up_model().without_draft();
  CHECK(costs.round(std::vector<std::int32_t>{1, 3, 2}, 6, 0) == 1035);
  CHECK(costs.target == "target");
  CHECK(costs.hardware == "none");
  CHECK(costs.draft.empty());
}

TEST_CASE("a tree costs a draft pass a level, over the nodes that have children") {
  const cost_model costs = made_up_model();
  tree<> drawn(16);
  drawn.reset(1);
  CHECK(costs.tree(drawn.view(), 0) == 1000);
  drawn.append(0, 5, -1.0F);
  drawn.append(0, 6, -1.0F);
  drawn.append(0, 7, -1.0F);
  drawn.append(1, 5, -1.0F);
  drawn.append(3, 6, -1.0F);
  CHECK(costs.tree(drawn.view(), 0) == 1035.5 + 1 + 2);
}

TEST_CASE("trees deeper than is looked at at once, and any tree") {
  const cost_model costs = made_up_model();
  tree<> chain(200);
  chain.reset(1);
  for (int i = 0; i < 200; ++i)
    chain.append(i, 2, -1.0F);
  CHECK(costs.tree(chain.view(), 0) == Approx(1000.5 + 200 * 7 + 200));

  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    const tree<> drawn = testing::random_tree(150, seed, 50, seed % 2 == 0 ? 0.0 : 0.97);
    std::vector<std::int32_t> asked;
    for (node_id u = 0; u < drawn.size(); ++u) {
      const auto depth = static_cast<std::size_t>(drawn.view().depth[u]);
      if (asked.size() <= depth) asked.resize(depth + 1);
      if (!drawn.view().is_leaf(u)) ++asked[depth];
    }
    const allocation_count allocations;
    const double seconds = costs.tree(drawn.view(), 50);
    CHECK(allocations.so_far() == 0);
    CHECK(seconds == Approx(costs.round(asked, drawn.size(), 50)));
  }
}
