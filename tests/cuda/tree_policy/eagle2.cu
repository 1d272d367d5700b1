// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/eagle2.cuh"

#include <cstdint>

#include "catch.hpp"
#include "cuda/tree_policy/same_growth.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/tree_policy/eagle2.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::grow_both;
using espalier_test::random_table;
using espalier_test::without_rows;

static_assert(gpu::TreePolicy<gpu::eagle2, espalier_test::device_table_drafter>);
static_assert(gpu::RebuildingPolicy<gpu::eagle2>);

namespace {

void check_eagle2(const eagle2_options& options, std::int32_t limit, std::int32_t vocab) {
  const auto table = random_table(40, vocab, static_cast<std::uint32_t>(options.budget + options.beam));
  CAPTURE(options.beam, options.depth, options.budget, limit, vocab);
  eagle2 host(options);
  gpu::eagle2 device(options);
  CHECK(grow_both(host, device, table, {.limit = limit, .rounds = 2}) == "");
}

}  // namespace

TEST_CASE("EAGLE-2's trees on the device are the host's") {
  const auto depth = GENERATE(1, 4);
  const auto budget = GENERATE(20, 200);
  const auto limit = GENERATE(1 << 20, 17);
  check_eagle2({.beam = 10, .depth = depth, .budget = budget}, limit, 80);
}

TEST_CASE("EAGLE-2's trees on the device are the host's, whatever their options", "[long]") {
  const auto beam = GENERATE(1, 10);
  const auto depth = GENERATE(0, 1, 4);
  const auto budget = GENERATE(1, 20, 200);
  const auto limit = GENERATE(1 << 20, 17, 0);
  const auto vocab = GENERATE(2, 80);
  check_eagle2({.beam = beam, .depth = depth, .budget = budget}, limit, vocab);
}

TEST_CASE("EAGLE-2's largest tree on the device is the host's", "[long]") {
  const auto table = random_table(30, 200, 4);
  const eagle2_options options{.beam = 64, .depth = 2, .budget = 1024};
  eagle2 host(options);
  gpu::eagle2 device(options);
  CHECK(grow_both(host, device, table) == "");
}

TEST_CASE("A row of zeros is a leaf of EAGLE-2's tree") {
  const auto table = without_rows(random_table(5, 20, 1), 1, 2);
  eagle2 host({.beam = 3, .depth = 6, .budget = 30});
  gpu::eagle2 device({.beam = 3, .depth = 6, .budget = 30});
  CHECK(grow_both(host, device, table, {.rounds = 4}) == "");
}

TEST_CASE("EAGLE-2's tree of a real vocabulary is the host's", "[long]") {
  const auto table = random_table(8, 151936, 6);
  eagle2 host({.beam = 4, .depth = 2});
  gpu::eagle2 device({.beam = 4, .depth = 2});
  CHECK(grow_both(host, device, table) == "");
}

TEST_CASE("Options of eagle2 on the device are checked") {
  CHECK_THROWS_AS(gpu::eagle2({.beam = 65}), option_error);
  CHECK_THROWS_AS(gpu::eagle2({.depth = -1}), option_error);
  CHECK_THROWS_AS(gpu::eagle2({.budget = 1025}), option_error);
  CHECK(gpu::eagle2({.budget = 33}).max_nodes() == 33);
  CHECK(gpu::eagle2({.beam = 8, .depth = 6, .budget = 33}).max_asked() == 48);
}
