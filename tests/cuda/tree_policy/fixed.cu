// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/fixed.cuh"

#include <cstdint>

#include "catch.hpp"
#include "cuda/tree_policy/same_growth.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/tree_policy/fixed.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::give_options;
using espalier_test::grow_both;
using espalier_test::random_table;
using espalier_test::without_rows;

static_assert(gpu::TreePolicy<gpu::fixed, espalier_test::device_table_drafter>);
static_assert(gpu::TextwisePolicy<gpu::fixed>);

namespace {

void check_fixed(const fixed_options& options, std::int32_t limit, std::int32_t vocab) {
  const auto table = random_table(40, vocab, static_cast<std::uint32_t>(options.budget + options.breadth));
  CAPTURE(options.depth, options.breadth, options.budget, limit, vocab);
  fixed host(options);
  gpu::fixed device(options);
  CHECK(grow_both(host, device, table, {.limit = limit, .rounds = 2}) == "");
}

}  // namespace

TEST_CASE("Fixed trees of the device are the host's") {
  const auto depth = GENERATE(1, 3);
  const auto breadth = GENERATE(2, 64);
  const auto limit = GENERATE(1 << 20, 14);
  check_fixed({.depth = depth, .breadth = breadth, .budget = 40}, limit, 80);
}

TEST_CASE("Fixed trees of the device are the host's, whatever their options", "[long]") {
  const auto depth = GENERATE(1, 3, 9);
  const auto breadth = GENERATE(1, 2, 64);
  const auto budget = GENERATE(2, 40, 1024);
  const auto limit = GENERATE(1 << 20, 14, 1, 0);
  const auto vocab = GENERATE(2, 80);
  check_fixed({.depth = depth, .breadth = breadth, .budget = budget}, limit, vocab);
}

TEST_CASE("A row of zeros is a leaf of a fixed tree") {
  const auto table = without_rows(random_table(5, 20, 1), 1, 2);
  fixed host({.depth = 6, .breadth = 3, .budget = 50});
  gpu::fixed device({.depth = 6, .breadth = 3, .budget = 50});
  CHECK(grow_both(host, device, table, {.rounds = 4}) == "");
}

TEST_CASE("A text may have a smaller fixed tree than the others") {
  const auto table = random_table(20, 50, 9);
  const fixed_options own{.depth = 3, .breadth = 2, .budget = 9};
  gpu::fixed device({.depth = 5, .breadth = 3, .budget = 12});
  give_options(device, own);
  // The launches are made for the larger tree: passes of nobody are not counted.
  CHECK(grow_both(fixed(own), device, table, {.rounds = 2, .fresh = false}) == "");
  CHECK_THROWS_AS(device.learnt_with({.depth = 6, .breadth = 2, .budget = 12}), option_error);
  CHECK_THROWS_AS(device.learnt_with({.depth = 5, .breadth = 4, .budget = 12}), option_error);
  CHECK_THROWS_AS(device.learnt_with({.depth = 5, .breadth = 2, .budget = 13}), option_error);
  for (const std::int32_t place : {0, 1})
    device.reset(place, nullptr);
  CHECK(grow_both(fixed({.depth = 5, .breadth = 3, .budget = 12}), device, table, {.fresh = false}) == "");
}

TEST_CASE("Options of fixed trees on the device are checked") {
  CHECK_THROWS_AS(gpu::fixed({.depth = 0}), option_error);
  CHECK_THROWS_AS(gpu::fixed({.breadth = 65}), option_error);
  CHECK_THROWS_AS(gpu::fixed({.budget = 1025}), option_error);
  CHECK(gpu::fixed({.budget = 300}).max_nodes() == 300);
}
