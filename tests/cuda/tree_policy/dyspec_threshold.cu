// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/dyspec_threshold.cuh"

#include <cstdint>
#include <string>

#include "catch.hpp"
#include "cuda/tree_policy/same_growth.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/tree_policy/dyspec_threshold.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::give_options;
using espalier_test::grow_both;
using espalier_test::random_table;

static_assert(gpu::TreePolicy<gpu::dyspec_threshold, espalier_test::device_table_drafter>);
static_assert(gpu::TextwisePolicy<gpu::dyspec_threshold> && gpu::ResettingPolicy<gpu::dyspec_threshold>);

namespace {

void check_dyspec_threshold(const dyspec_threshold_options& options, std::int32_t limit, std::int32_t vocab,
                            std::int32_t n_rows) {
  const auto table = random_table(n_rows, vocab, static_cast<std::uint32_t>(options.budget + vocab));
  CAPTURE(options.budget, limit, vocab, n_rows, options.threshold, options.fill);
  dyspec_threshold host(options);
  gpu::dyspec_threshold device(options);
  CHECK(grow_both(host, device, table, {.limit = limit, .rounds = 4}) == "");
}

}  // namespace

TEST_CASE("DySpec's layered trees on the device are the host's") {
  const auto budget = GENERATE(2, 17);
  const auto limit = GENERATE(1 << 20, 9);
  const auto threshold = GENERATE(0.02, 0.3);
  const auto fill = GENERATE(false, true);
  check_dyspec_threshold({.budget = budget, .max_depth = 6, .threshold = threshold, .fill = fill}, limit, 60, 40);
}

TEST_CASE("DySpec's layered trees on the device are the host's, whatever their options", "[long]") {
  const auto budget = GENERATE(1, 2, 17, 64);
  const auto limit = GENERATE(1 << 20, 9, 1, 0);
  const auto vocab = GENERATE(2, 7, 60);
  const auto n_rows = GENERATE(1, 40);
  const auto threshold = GENERATE(0.0, 0.02, 0.3, 1.0);
  const auto fill = GENERATE(false, true);
  check_dyspec_threshold({.budget = budget, .max_depth = 6, .threshold = threshold, .fill = fill}, limit, vocab,
                         n_rows);
}

TEST_CASE("DySpec's layered tree of a real vocabulary is the host's", "[long]") {
  const auto table = random_table(8, 151936, 3);
  const dyspec_threshold_options options{.budget = 20, .max_depth = 4, .threshold = 0.1, .fill = true, .adapt = false};
  dyspec_threshold host(options);
  gpu::dyspec_threshold device(options);
  CHECK(grow_both(host, device, table) == "");
}

TEST_CASE("DySpec's largest layered tree is the host's", "[long]") {
  const auto table = random_table(50, 40, 8);
  const dyspec_threshold_options options{.budget = 1024, .threshold = 0.002, .fill = true};
  dyspec_threshold host(options);
  gpu::dyspec_threshold device(options);
  CHECK(grow_both(host, device, table) == "");
}

TEST_CASE("A text may have a smaller tree of DySpec's than the others") {
  const auto table = random_table(20, 50, 9);
  const dyspec_threshold_options all{.budget = 33, .max_depth = 6, .threshold = 0.05};
  const dyspec_threshold_options own{.budget = 14, .max_depth = 3, .threshold = 0.1};
  gpu::dyspec_threshold device(all);
  give_options(device, own);
  CHECK(grow_both(dyspec_threshold(own), device, table, {.rounds = 4, .fresh = false}) == "");
  CHECK_THROWS_AS(device.learnt_with({.budget = 34, .max_depth = 6, .threshold = 0.05}), option_error);
  CHECK_THROWS_AS(device.learnt_with({.budget = 33, .max_depth = 7, .threshold = 0.05}), option_error);
  CHECK_THROWS_AS(device.learnt_with({.budget = 33, .max_depth = 6, .threshold = 0.04}), option_error);
  CHECK_THROWS_AS(device.learnt_with({.budget = 33, .max_depth = 6, .threshold = 0.05, .fill = true}), option_error);
  gpu::dyspec_threshold still({.budget = 33, .max_depth = 6, .threshold = 0.05, .adapt = false});
  CHECK_THROWS_AS(still.learnt_with(own), option_error);
  for (const std::int32_t place : {0, 1})
    device.reset(place, nullptr);
  CHECK(grow_both(dyspec_threshold(all), device, table, {.rounds = 2, .fresh = false}) == "");
}

TEST_CASE("Trees of DySpec's that are filled have one budget, but other depths and thresholds") {
  const auto table = random_table(20, 50, 9);
  const dyspec_threshold_options own{.budget = 20, .max_depth = 2, .threshold = 0.3, .fill = true};
  gpu::dyspec_threshold device({.budget = 20, .max_depth = 5, .threshold = 0.1, .fill = true});
  give_options(device, own);
  CHECK(grow_both(dyspec_threshold(own), device, table, {.rounds = 4, .fresh = false}) == "");
  CHECK_THROWS_AS(device.learnt_with({.budget = 19, .max_depth = 2, .threshold = 0.3, .fill = true}), option_error);
}

TEST_CASE("Options of dyspec_threshold on the device are checked") {
  CHECK_THROWS_AS(gpu::dyspec_threshold({.budget = 0}), option_error);
  CHECK_THROWS_AS(gpu::dyspec_threshold({.max_depth = 65}), option_error);
  CHECK_THROWS_AS(gpu::dyspec_threshold({.threshold = 2}), option_error);
  CHECK(gpu::dyspec_threshold({.budget = 33}).max_nodes() == 33);
}
