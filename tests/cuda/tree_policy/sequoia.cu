// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/sequoia.cuh"

#include <cstdint>
#include <span>
#include <vector>

#include "catch.hpp"
#include "cuda/tree_policy/same_growth.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/tree_policy/sequoia.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::grow_both;
using espalier_test::random_table;
using espalier_test::without_rows;

static_assert(gpu::TreePolicy<gpu::sequoia, espalier_test::device_table_drafter>);

namespace {

void check_sequoia(const sequoia_options& options, std::int32_t limit, std::int32_t vocab) {
  const auto table = random_table(40, vocab, static_cast<std::uint32_t>(options.budget + options.max_depth));
  CAPTURE(options.budget, options.max_depth, limit, vocab);
  sequoia host(options);
  gpu::sequoia device(options);
  CHECK(grow_both(host, device, table, {.limit = limit, .rounds = 2}) == "");
}

}  // namespace

TEST_CASE("Sequoia's trees on the device are the host's") {
  const auto budget = GENERATE(9, 64);
  const auto max_depth = GENERATE(3, 10);
  const auto limit = GENERATE(1 << 20, 17);
  check_sequoia({.budget = budget, .max_depth = max_depth}, limit, 80);
}

TEST_CASE("Sequoia's trees on the device are the host's, whatever their options", "[long]") {
  const auto budget = GENERATE(1, 9, 64);
  const auto max_depth = GENERATE(1, 3, 10);
  const auto limit = GENERATE(1 << 20, 17, 1, 0);
  const auto vocab = GENERATE(2, 9, 80);
  check_sequoia({.budget = budget, .max_depth = max_depth}, limit, vocab);
}

TEST_CASE("Sequoia's shapes for other rates of acceptance are the host's") {
  const auto table = random_table(40, 30, 7);
  // Chains; and broad trees, whose nodes have up to 64 children.
  for (const std::vector<double>& rates : {std::vector<double>{0.9}, std::vector<double>(64, 0.015)}) {
    sequoia host({.budget = 200, .max_depth = 6, .acceptance = rates});
    gpu::sequoia device({.budget = 200, .max_depth = 6, .acceptance = rates});
    CHECK(grow_both(host, device, table, {.rounds = 2}) == "");
  }
  // Nothing is worth a draft.
  const double never[] = {0.0};
  sequoia host({.budget = 20, .acceptance = never});
  gpu::sequoia device({.budget = 20, .acceptance = never});
  CHECK(device.max_nodes() == 0);
  CHECK(grow_both(host, device, table) == "");
}

TEST_CASE("What hangs below a draw that was not made is left out, and a row of zeros is a leaf") {
  const auto table = without_rows(random_table(5, 20, 1), 1, 2);
  sequoia host({.budget = 40});
  gpu::sequoia device({.budget = 40});
  CHECK(grow_both(host, device, table, {.rounds = 4}) == "");
}

TEST_CASE("Sequoia's tree of a real vocabulary is the host's", "[long]") {
  const auto table = random_table(8, 151936, 3);
  sequoia host({.budget = 12});
  gpu::sequoia device({.budget = 12});
  CHECK(grow_both(host, device, table) == "");
}

TEST_CASE("Options of sequoia on the device are checked") {
  CHECK_THROWS_AS(gpu::sequoia({.budget = 0}), option_error);
  CHECK_THROWS_AS(gpu::sequoia({.max_depth = 65}), option_error);
  CHECK(gpu::sequoia({.budget = 33}).max_nodes() == sequoia({.budget = 33}).max_nodes());
}
