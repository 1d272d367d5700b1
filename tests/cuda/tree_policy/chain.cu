// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/chain.cuh"

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/tree_policy/same_growth.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/core/philox.hpp"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "raises.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using namespace espalier_test;

static_assert(gpu::TreePolicy<gpu::chain, device_table_drafter>);
static_assert(gpu::TreePolicy<gpu::chain, device_table_block<__half>>);
static_assert(gpu::TreePolicy<gpu::best_first, device_table_block<float>>);
static_assert(gpu::TreePolicy<gpu::plain, device_table_drafter>);

namespace {

row_table<float> random_logits(std::int32_t n_rows, std::int32_t vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0, 4);
  row_table<float> table{n_rows, vocab};
  for (std::int32_t i = 0; i < n_rows * vocab; ++i)
    table.numbers.push_back(random() % 9 == 0 ? -std::numeric_limits<float>::infinity()
                                              : std::round(normal(random) * 8) / 8);
  return table;
}

// Over blocks: the device's tree beside the host's, from logits of a type that holds them exactly.
template <class NumberT, class HostT, class DeviceT>
std::string grow_over_block(HostT host, DeviceT device, const row_table<float>& logits, std::int32_t limit = 1 << 20) {
  row_table<NumberT> same{logits.n_rows, logits.vocab};
  for (const float x : logits.numbers)
    same.numbers.push_back(static_cast<NumberT>(x));
  table_block host_drafter(logits);
  device_table_block<NumberT> device_drafter(same);
  tree<> expected(host.max_nodes());
  expected.reset(5, limit);
  philox_chance chance(1, 0, 0);
  grow(host, expected, host_drafter, chance);
  const gpu::tree grown(device.max_nodes());
  start_round(grown, 5, limit);
  gpu::grow(device, gpu::text_batch::of(grown.writer(), {}), device_drafter, nullptr);
  if (device_drafter.what_was_found().what != gpu::fault::kind::none) return "a fault";
  return difference(grown, expected);
}

}  // namespace

TEST_CASE("Chains of the device are the host's") {
  const auto length = GENERATE(1, 5, 20);
  const auto limit = GENERATE(1 << 20, 3, 0);
  const auto vocab = GENERATE(2, 70, 3000);
  const auto table = random_table(30, vocab, static_cast<std::uint32_t>(length));
  CAPTURE(length, limit, vocab);
  chain host({.length = length});
  gpu::chain device({.length = length});
  CHECK(grow_both(host, device, table, {.limit = limit, .rounds = 3}) == "");
}

TEST_CASE("A chain of a row of zeros ends there") {
  const auto table = without_rows(random_table(3, 20, 1), 1, 1);
  chain host({.length = 12});
  gpu::chain device({.length = 12});
  CHECK(grow_both(host, device, table, {.rounds = 6}) == "");
}

TEST_CASE("Chains over a block are the host's") {
  const auto length = GENERATE(1, 4, 30);
  const auto limit = GENERATE(1 << 20, 3, 0);
  const auto vocab = GENERATE(1, 300, 5000);
  const auto logits = random_logits(7, vocab == 1 ? 1 : vocab, 7);
  CAPTURE(length, limit, vocab);
  auto possible = logits;
  for (std::int32_t r = 0; r < 7; ++r)
    possible.numbers[static_cast<std::size_t>(r * vocab)] = 3;
  CHECK(grow_over_block<float>(chain({.length = length}), gpu::chain({.length = length}), possible, limit) == "");
  CHECK(grow_over_block<__half>(chain({.length = length}), gpu::chain({.length = length}), possible, limit) == "");
}

TEST_CASE("The best tree of a block is the host's") {
  const auto budget = GENERATE(1, 60, 700);
  const auto limit = GENERATE(1 << 20, 25, 0);
  const auto vocab = GENERATE(40, 5000);
  const auto logits = random_logits(15, vocab, 11);
  CAPTURE(budget, limit, vocab);
  const best_first_options options{.budget = budget, .max_depth = 12};
  CHECK(grow_over_block<float>(best_first(options), gpu::best_first(options), logits, limit) == "");
  CHECK(grow_over_block<__half>(best_first(options), gpu::best_first(options), logits, limit) == "");
}

TEST_CASE("A block's logits that no token may be drawn from are a fault, and the tree ends there") {
  auto logits = random_logits(6, 500, 2);
  const bool is_impossible = GENERATE(false, true);
  if (is_impossible) {
    std::fill_n(logits.numbers.begin() + 2 * 500, 500, -std::numeric_limits<float>::infinity());
  } else {
    logits.numbers[2 * 500 + 77] = std::numeric_limits<float>::quiet_NaN();
  }
  device_table_block<float> drafter(logits);
  const gpu::tree grown(64);
  start_round(grown, 5, 64);
  const bool as_chain = GENERATE(true, false);
  gpu::chain chain;
  gpu::best_first best_first;
  if (as_chain) {
    gpu::grow(chain, gpu::text_batch::of(grown.writer(), {}), drafter, nullptr);
  } else {
    gpu::grow(best_first, gpu::text_batch::of(grown.writer(), {}), drafter, nullptr);
  }
  const gpu::fault found = drafter.what_was_found();
  CHECK(found.what == (is_impossible ? gpu::fault::kind::no_token : gpu::fault::kind::bad_logit));
  CHECK(says(message_of<numeric_error>([&] { gpu::raise_fault(found); }), "the draft's logit", "row 2 of the block",
             is_impossible ? "all of" : "token 77"));
  const tree_writer w = grown.writer();
  for (const std::int32_t depth : to_host(w.depth, static_cast<std::size_t>(to_host(w.size, 1)[0].n_nodes)))
    CHECK(depth <= 2);
}

TEST_CASE("Plain decoding drafts nothing on the device") {
  const auto table = random_table(3, 20, 1);
  plain host;
  gpu::plain device;
  CHECK(grow_both(host, device, table, {.rounds = 2}) == "");
}

TEST_CASE("Options of chains on the device are checked") {
  CHECK_THROWS_AS(gpu::chain({.length = 0}), option_error);
  CHECK_THROWS_AS(gpu::chain({.length = 1025}), option_error);
  CHECK(gpu::chain({.length = 9}).max_nodes() == 9);
}
