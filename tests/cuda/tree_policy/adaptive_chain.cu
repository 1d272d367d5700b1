// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/adaptive_chain.cuh"

#include <cstdint>

#include "catch.hpp"
#include "cuda/tree_policy/same_growth.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/tree_policy/adaptive_chain.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::give_options;
using espalier_test::grow_both;
using espalier_test::random_table;
using espalier_test::without_rows;

static_assert(gpu::TreePolicy<gpu::adaptive_chain, espalier_test::device_table_drafter>);
static_assert(gpu::TextwisePolicy<gpu::adaptive_chain> && gpu::ResettingPolicy<gpu::adaptive_chain>);

namespace {

void check_adaptive_chain(std::int32_t length, double confidence, std::int32_t limit, std::int32_t vocab) {
  const auto table = random_table(30, vocab, static_cast<std::uint32_t>(length));
  CAPTURE(length, confidence, limit, vocab);
  const adaptive_chain_options options{.length = length, .max_length = 12, .confidence = confidence};
  adaptive_chain host(options);
  gpu::adaptive_chain device(options);
  // Enough rounds for the length to grow and to shrink.
  CHECK(grow_both(host, device, table, {.limit = limit, .rounds = 9}) == "");
}

}  // namespace

TEST_CASE("Adaptive chains of the device are the host's") {
  const auto length = GENERATE(1, 12);
  const auto confidence = GENERATE(0.0, 0.3);
  const auto limit = GENERATE(1 << 20, 3);
  check_adaptive_chain(length, confidence, limit, 70);
}

TEST_CASE("Adaptive chains of the device are the host's, whatever their options", "[long]") {
  const auto length = GENERATE(1, 5, 12);
  const auto confidence = GENERATE(0.0, 0.3, 1.0);
  const auto limit = GENERATE(1 << 20, 3, 0);
  const auto vocab = GENERATE(2, 70, 3000);
  check_adaptive_chain(length, confidence, limit, vocab);
}

TEST_CASE("An adaptive chain of a row of zeros ends there") {
  const auto table = without_rows(random_table(3, 20, 1), 1, 1);
  const adaptive_chain_options options{.length = 12, .max_length = 12, .confidence = 0};
  adaptive_chain host(options);
  gpu::adaptive_chain device(options);
  CHECK(grow_both(host, device, table, {.rounds = 6}) == "");
}

TEST_CASE("What an adaptive chain has learnt is dropped when a text begins") {
  const auto table = random_table(20, 50, 9);
  const adaptive_chain_options options{.length = 8, .max_length = 12, .confidence = 0};
  const adaptive_chain host(options);
  gpu::adaptive_chain device(options);
  CHECK(grow_both(host, device, table, {.rounds = 12}) == "");
  CHECK(grow_both(host, device, table, {.rounds = 12, .fresh = false}) != "");
  for (const std::int32_t place : {0, 1})
    device.reset(place, nullptr);
  CHECK(grow_both(host, device, table, {.rounds = 12, .fresh = false}) == "");
}

TEST_CASE("A text may have an adaptive chain of its own options") {
  const auto table = random_table(20, 50, 9);
  const adaptive_chain_options own{.length = 3, .max_length = 12, .confidence = 0.2};
  gpu::adaptive_chain device({.length = 8, .max_length = 12, .confidence = 0});
  give_options(device, own);
  CHECK(grow_both(adaptive_chain(own), device, table, {.rounds = 5, .fresh = false}) == "");
  CHECK_THROWS_AS(device.learnt_with({.length = 3, .max_length = 13}), option_error);
}

TEST_CASE("Options of adaptive chains on the device are checked") {
  CHECK_THROWS_AS(gpu::adaptive_chain({.length = 0}), option_error);
  CHECK_THROWS_AS(gpu::adaptive_chain({.length = 9, .max_length = 8}), option_error);
  CHECK_THROWS_AS(gpu::adaptive_chain({.confidence = 1.5}), option_error);
  CHECK(gpu::adaptive_chain({.length = 9, .max_length = 10}).max_nodes() == 10);
}
