// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/dyspec_greedy.cuh"

#include <cstdint>
#include <string>

#include "catch.hpp"
#include "cuda/tree_policy/same_growth.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/tree_policy/dyspec_greedy.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::grow_both;
using espalier_test::random_table;

static_assert(gpu::TreePolicy<gpu::dyspec_greedy, espalier_test::device_table_drafter>);

namespace {

void check_dyspec_greedy(std::int32_t budget, std::int32_t limit, std::int32_t vocab, std::int32_t n_rows) {
  const auto table = random_table(n_rows, vocab, static_cast<std::uint32_t>(budget + vocab));
  CAPTURE(budget, limit, vocab, n_rows);
  dyspec_greedy host({.budget = budget});
  gpu::dyspec_greedy device({.budget = budget});
  CHECK(grow_both(host, device, table, {.limit = limit, .rounds = 2}) == "");
}

}  // namespace

TEST_CASE("DySpec's greedy trees on the device are the host's") {
  const auto budget = GENERATE(2, 17);
  const auto limit = GENERATE(1 << 20, 9);
  const auto n_rows = GENERATE(1, 40);
  check_dyspec_greedy(budget, limit, 60, n_rows);
}

TEST_CASE("DySpec's greedy trees on the device are the host's, whatever their options", "[long]") {
  const auto budget = GENERATE(1, 2, 17, 64);
  const auto limit = GENERATE(1 << 20, 9, 1, 0);
  const auto vocab = GENERATE(2, 7, 60, 3000);
  const auto n_rows = GENERATE(1, 40);
  check_dyspec_greedy(budget, limit, vocab, n_rows);
}

TEST_CASE("DySpec's greedy tree of a real vocabulary is the host's", "[long]") {
  const auto table = random_table(8, 151936, 3);
  dyspec_greedy host({.budget = 12});
  gpu::dyspec_greedy device({.budget = 12});
  CHECK(grow_both(host, device, table, {.rounds = 2}) == "");
}

TEST_CASE("DySpec's largest greedy tree is the host's", "[long]") {
  const auto table = random_table(50, 40, 8);
  dyspec_greedy host({.budget = 1024});
  gpu::dyspec_greedy device({.budget = 1024});
  CHECK(grow_both(host, device, table) == "");
}

TEST_CASE("Options of dyspec_greedy on the device are checked") {
  CHECK_THROWS_AS(gpu::dyspec_greedy({.budget = 0}), option_error);
  CHECK_THROWS_AS(gpu::dyspec_greedy({.budget = 1025}), option_error);
  CHECK(gpu::dyspec_greedy({.budget = 33}).max_nodes() == 33);
}
