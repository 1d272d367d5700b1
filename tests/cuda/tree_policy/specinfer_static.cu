// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/specinfer_static.cuh"

#include <cstdint>

#include "catch.hpp"
#include "cuda/tree_policy/same_growth.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/tree_policy/specinfer_static.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::grow_both;
using espalier_test::random_table;

static_assert(gpu::TreePolicy<gpu::specinfer_static, espalier_test::device_table_drafter>);

namespace {

// Shapes that end by their levels and by their budget; wide, narrow, and without a level.
specinfer_static_options shape(int kind) {
  switch (kind) {
    case 0:
      return {};
    case 1:
      return {.budget = 7, .level_1 = 2, .level_2 = 3, .level_3 = 5};
    case 2:
      return {.budget = 1024, .level_1 = 64, .level_2 = 64, .level_3 = 1, .level_4 = 64};
    case 3:
      return {.level_1 = 1,
              .level_2 = 1,
              .level_3 = 1,
              .level_4 = 1,
              .level_5 = 1,
              .level_6 = 2,
              .level_7 = 3,
              .level_8 = 4};
    case 4:
      return {.budget = 1, .level_1 = 3};
    default:
      return {.level_1 = 0};
  }
}

void check_specinfer(int kind, std::int32_t limit, std::int32_t vocab) {
  const auto table = random_table(40, vocab, static_cast<std::uint32_t>(kind + vocab));
  CAPTURE(kind, limit, vocab);
  specinfer_static host(shape(kind));
  gpu::specinfer_static device(shape(kind));
  CHECK(grow_both(host, device, table, {.limit = limit, .rounds = kind == 2 ? 1 : 2}) == "");
}

}  // namespace

TEST_CASE("SpecInfer's trees of fixed shape on the device are the host's") {
  const auto kind = GENERATE(0, 1, 3);
  const auto limit = GENERATE(1 << 20, 33);
  check_specinfer(kind, limit, 9);
}

TEST_CASE("SpecInfer's trees of fixed shape on the device are the host's, whatever the shape", "[long]") {
  const auto kind = GENERATE(range(0, 6));
  const auto limit = GENERATE(1 << 20, 33, 1, 0);
  const auto vocab = GENERATE(2, 9);
  check_specinfer(kind, limit, vocab);
}

TEST_CASE("SpecInfer's tree of a real vocabulary is the host's", "[long]") {
  const auto table = random_table(8, 151936, 3);
  specinfer_static host({.budget = 12});
  gpu::specinfer_static device({.budget = 12});
  CHECK(grow_both(host, device, table) == "");
}

TEST_CASE("Options of specinfer_static on the device are checked") {
  CHECK_THROWS_AS(gpu::specinfer_static({.budget = 0}), option_error);
  CHECK_THROWS_AS(gpu::specinfer_static({.level_3 = 65}), option_error);
  CHECK(gpu::specinfer_static().max_nodes() == 60);
}
