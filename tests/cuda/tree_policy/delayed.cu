// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/delayed.cuh"

#include <cstdint>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "cuda/tree_policy/same_growth.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/tree_policy/iid_paths.cuh"
#include "espalier/cuda/tree_policy/sampled_chain.cuh"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/iid_paths.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::grow_both;
using espalier_test::random_table;

static_assert(gpu::TreePolicy<gpu::delayed, espalier_test::device_table_drafter>);
static_assert(gpu::TreePolicy<gpu::iid_paths, espalier_test::device_table_drafter>);
static_assert(gpu::sampled_chain::sampling == sampled_chain::sampling);

namespace {

void check_delayed(const delayed_options& options, std::int32_t limit, std::int32_t vocab) {
  const auto table = random_table(40, vocab, static_cast<std::uint32_t>(options.paths + 10 * options.length));
  CAPTURE(options.paths, options.trunk, options.length, limit, vocab);
  delayed host(options);
  gpu::delayed device(options);
  CHECK(grow_both(host, device, table, {.limit = limit, .rounds = 3}) == "");
}

}  // namespace

TEST_CASE("Delayed trees of the device are the host's") {
  const auto paths = GENERATE(1, 5);
  const auto trunk = GENERATE(0, 3);
  const auto limit = GENERATE(1 << 20, 5);
  const auto vocab = GENERATE(3, 50);
  check_delayed({.paths = paths, .trunk = trunk, .length = 4}, limit, vocab);
}

TEST_CASE("Delayed trees of the device are the host's, whatever their options", "[long]") {
  const auto paths = GENERATE(1, 2, 5, 64);
  const auto trunk = GENERATE(0, 1, 3);
  const auto length = GENERATE(0, 1, 4);
  const auto limit = GENERATE(1 << 20, 5, 1, 0);
  const auto vocab = GENERATE(3, 50);
  check_delayed({.paths = paths, .trunk = trunk, .length = length}, limit, vocab);
}

TEST_CASE("Paths of a real vocabulary are the host's") {
  const auto table = random_table(8, 151936, 3);
  iid_paths host({.paths = 4, .length = 3});
  gpu::iid_paths device({.paths = 4, .length = 3});
  CHECK(grow_both(host, device, table, {.rounds = 2}) == "");
}

TEST_CASE("A sampled chain of the device is the host's") {
  const auto table = random_table(30, 20000, 4);
  sampled_chain host({.length = 12});
  gpu::sampled_chain device({.length = 12});
  CHECK(grow_both(host, device, table, {.rounds = 2}) == "");
  CHECK(grow_both(host, device, table, {.limit = 5, .rounds = 2}) == "");
}

TEST_CASE("Options of paths on the device are checked") {
  CHECK_THROWS_AS(gpu::delayed({.paths = 65}), option_error);
  CHECK_THROWS_AS(gpu::delayed({.trunk = -1}), option_error);
  CHECK_THROWS_AS(gpu::iid_paths({.length = 65}), option_error);
  CHECK(gpu::delayed({.paths = 3, .trunk = 2, .length = 4}).max_nodes() == 14);
}
