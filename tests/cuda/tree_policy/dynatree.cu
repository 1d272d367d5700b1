// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/dynatree.cuh"

#include <cstdint>
#include <string>

#include "catch.hpp"
#include "cuda/tree_policy/same_growth.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/tree_policy/dynatree.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::give_options;
using espalier_test::grow_both;
using espalier_test::random_table;

static_assert(gpu::TreePolicy<gpu::dynatree, espalier_test::device_table_drafter>);
static_assert(gpu::TextwisePolicy<gpu::dynatree> && gpu::ResettingPolicy<gpu::dynatree>);

namespace {

// With options of four kinds.
void check_dynatree(int kind, std::int32_t budget, std::int32_t limit, std::int32_t vocab) {
  dynatree_options options;
  if (kind == 1) options = dynatree_options::first_paper();
  if (kind == 2) {  // all levels full: what the widths of the levels have to hold
    options = dynatree_options::first_paper();
    options.prune_probability = 0;
    options.min_breadth = options.mid_breadth = options.max_breadth = 4;
  }
  if (kind == 3) {
    options.min_breadth = options.mid_breadth = 2, options.max_breadth = 64;
    options.prune_probability = options.stop_probability = options.deep_probability = 1e-4;
  }
  options.budget = budget;
  const auto table = random_table(40, vocab, static_cast<std::uint32_t>(budget + kind));
  CAPTURE(budget, limit, vocab, kind);
  dynatree host(options);
  gpu::dynatree device(options);
  // Enough rounds for history to count.
  CHECK(grow_both(host, device, table, {.limit = limit, .rounds = 8}) == "");
}

}  // namespace

TEST_CASE("Dynamic trees of the device are the host's") {
  const auto budget = GENERATE(3, 30);
  const auto limit = GENERATE(1 << 20, 14);
  const auto kind = GENERATE(0, 1, 2, 3);
  check_dynatree(kind, budget, limit, 80);
}

TEST_CASE("Dynamic trees of the device are the host's, whatever their options", "[long]") {
  const auto budget = GENERATE(2, 3, 30, 256);
  const auto limit = GENERATE(1 << 20, 14, 1, 0);
  const auto vocab = GENERATE(2, 80);
  const auto kind = GENERATE(0, 1, 2, 3);
  check_dynatree(kind, budget, limit, vocab);
}

TEST_CASE("A dynamic tree of a real vocabulary is the host's", "[long]") {
  const auto table = random_table(8, 151936, 6);
  dynatree host({.budget = 24});
  gpu::dynatree device({.budget = 24});
  CHECK(grow_both(host, device, table, {.rounds = 1}) == "");
}

TEST_CASE("What a dynamic tree has learnt is dropped when a text begins") {
  const auto table = random_table(20, 50, 9);
  const dynatree host;
  gpu::dynatree device;
  CHECK(grow_both(host, device, table, {.rounds = 12}) == "");
  CHECK(grow_both(host, device, table, {.rounds = 12, .fresh = false}) != "");
  for (const std::int32_t place : {0, 1})
    device.reset(place, nullptr);
  CHECK(grow_both(host, device, table, {.rounds = 12, .fresh = false}) == "");
}

TEST_CASE("A text may have a smaller dynamic tree than the others") {
  const auto table = random_table(20, 50, 9);
  const dynatree_options all{.budget = 40, .base_depth = 3, .max_depth = 6, .max_breadth = 4};
  const dynatree_options own{.budget = 17, .base_depth = 2, .max_depth = 4, .mid_breadth = 1, .max_breadth = 2};
  gpu::dynatree device(all);
  give_options(device, own);
  // Enough rounds for history to count.
  CHECK(grow_both(dynatree(own), device, table, {.rounds = 8, .fresh = false}) == "");
  CHECK_THROWS_AS(device.learnt_with({.budget = 41, .base_depth = 3, .max_depth = 6}), option_error);
  CHECK_THROWS_AS(device.learnt_with({.budget = 40, .base_depth = 3, .max_depth = 7}), option_error);
  CHECK_THROWS_AS(device.learnt_with({.budget = 40, .base_depth = 3, .max_depth = 6, .max_breadth = 5}), option_error);
  CHECK_THROWS_AS(gpu::dynatree({.history = false}).learnt_with({}), option_error);
  for (const std::int32_t place : {0, 1})
    device.reset(place, nullptr);
  CHECK(grow_both(dynatree(all), device, table, {.rounds = 8, .fresh = false}) == "");
}

TEST_CASE("Options of dynamic trees on the device are checked") {
  CHECK_THROWS_AS(gpu::dynatree({.budget = 1}), option_error);
  CHECK_THROWS_AS(gpu::dynatree({.budget = 1025}), option_error);
  CHECK_THROWS_AS(gpu::dynatree({.max_breadth = 65}), option_error);
  CHECK_THROWS_AS(gpu::dynatree({.high_confidence = 2}), option_error);
  CHECK(gpu::dynatree({.budget = 300}).max_nodes() == 300);
}
