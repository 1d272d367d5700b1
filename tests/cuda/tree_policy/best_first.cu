// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/best_first.cuh"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "cuda/tree_policy/same_growth.cuh"
#include "cuda/tree_policy/same_tree.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/core/tree.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "raises.hpp"

#if __has_include("emulator/api.hpp")
#include "emulator/api.hpp"
#define ESPALIER_TEST_COUNTS_BYTES
#endif

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::difference;
using espalier_test::grow_both;
using espalier_test::random_table;
using espalier_test::row_table;
using espalier_test::start_round;
using espalier_test::to_device;
using espalier_test::without_rows;

static_assert(gpu::TreePolicy<gpu::best_first, espalier_test::device_table_drafter>);
static_assert(gpu::RebuildingPolicy<gpu::best_first>);

namespace {

constexpr float none = -std::numeric_limits<float>::infinity();

struct lists {
  std::vector<token_id> tokens;
  std::vector<float> log_probs;
  std::int32_t n_rows, n_ranks;
};

// Falling rows of numbers that `make` gives.
lists lists_of(std::int32_t n_rows, std::int32_t n_ranks, const std::function<float()>& make) {
  lists made{{}, {}, n_rows, n_ranks};
  for (std::int32_t r = 0; r < n_rows; ++r) {
    std::vector<float> row;
    for (std::int32_t i = 0; i < n_ranks; ++i)
      row.push_back(make()), made.tokens.push_back(1000 * (r + 1) + i);
    std::sort(row.begin(), row.end(), std::greater<>());
    made.log_probs.insert(made.log_probs.end(), row.begin(), row.end());
  }
  return made;
}

// What a row's softmax gives, and rows that a model never gives: ties, zeros, numbers so large that sums lose them,
// ends.
lists random_lists(std::int32_t n_rows, std::int32_t n_ranks, int kind, std::mt19937& random) {
  std::uniform_real_distribution<float> unit(0, 1);
  switch (kind) {
    case 0: {
      // A softmax over normal logits, its first ranks.
      std::normal_distribution<float> normal(0, 3);
      lists made = lists_of(n_rows, n_ranks, [&] { return normal(random); });
      for (std::int32_t r = 0; r < n_rows; ++r) {
        float* row = made.log_probs.data() + r * n_ranks;
        double sum = 0;
        for (std::int32_t i = 0; i < n_ranks; ++i)
          sum += std::exp(static_cast<double>(row[i]));
        for (std::int32_t i = 0; i < n_ranks; ++i)
          row[i] = std::min(0.0F, static_cast<float>(row[i] - std::log(sum)));
      }
      return made;
    }
    case 1:
      return lists_of(n_rows, n_ranks, [&] { return -0.5F * static_cast<float>(random() % 12); });
    case 2:
      return lists_of(n_rows, n_ranks, [&] { return random() % 3 == 0 ? none : -8 * unit(random); });
    case 3:
      return lists_of(n_rows, n_ranks, [&] { return random() % 2 == 0 ? -1e9F : -unit(random); });
    case 4:
      return lists_of(n_rows, n_ranks, [&] { return -2.0F; });
    case 5:
      return lists_of(n_rows, n_ranks, [&] { return random() % 4 == 0 ? none : 0.0F; });
    case 6:
      return lists_of(n_rows, n_ranks, [&] { return -std::pow(10.0F, 45 * unit(random) - 8); });
    case 7:
      return lists_of(n_rows, n_ranks, [&] { return random() % 2 == 0 ? -0.0F : -3e38F * unit(random); });
    default:
      return lists_of(n_rows, n_ranks, [&] { return none; });
  }
}
constexpr int n_kinds = 9;

// What every device of compute capability 8.0 and later has.
static_assert(sizeof(gpu::detail::best_first_memory<1024>) <= 99 * 1024);

// Grows from the same lists on host and device; an empty string where the trees are the same.
std::string compare(const lists& from, best_first_options options, std::int32_t limit = 1 << 20) {
  tree<> host(options.budget);
  host.reset(7, limit);
  best_first host_policy(options);
  host_policy.take_best(host, from.tokens, from.log_probs, from.n_rows, from.n_ranks);
  const gpu::best_first policy(options);
  const gpu::tree grown(options.budget);
  start_round(grown, 7, limit);
  const auto tokens = to_device(from.tokens);
  const auto log_probs = to_device(from.log_probs);
  policy.take_best(gpu::text_batch::of(grown.writer(), {}),
                   {tokens.data(), log_probs.data(), from.n_rows, from.n_ranks}, nullptr);
  return difference(grown, host);
}

}  // namespace

TEST_CASE("The prefixes taken on the device are the host's") {
  const auto kind = GENERATE(range(0, n_kinds));
  std::mt19937 random(static_cast<unsigned>(kind));
  for (int i = 0; i < 24; ++i) {
    const std::int32_t budget = i == 0   ? 1
                                : i == 1 ? 256
                                : i < 6  ? static_cast<std::int32_t>(257 + random() % 300)
                                         : static_cast<std::int32_t>(1 + random() % 150);
    const std::int32_t n_rows = i == 2 ? 1 : static_cast<std::int32_t>(1 + random() % 16);
    // Vocabularies smaller than the budget, too.
    const std::int32_t n_ranks =
        i % 3 == 0 ? budget : static_cast<std::int32_t>(1 + random() % static_cast<unsigned>(budget));
    const std::int32_t limit = i % 4 == 3 ? static_cast<std::int32_t>(random() % 40) : 1 << 20;
    const lists from = random_lists(n_rows, n_ranks, kind, random);
    CAPTURE(i, kind, budget, n_rows, n_ranks, limit);
    CHECK(compare(from, {.budget = budget}, limit) == "");
  }
}

TEST_CASE("The largest budget gives the host's tree") {
  const auto kind = GENERATE(0, 1, 3, 5);
  const auto n_ranks = GENERATE(1024, 40);
  const auto n_rows = GENERATE(15, 64);
  std::mt19937 random(5);
  const lists from = random_lists(n_rows, n_ranks, kind, random);
  CAPTURE(kind, n_ranks, n_rows);
  CHECK(compare(from, {.budget = 1024, .max_depth = 64}) == "");
}

TEST_CASE("Levels of which few nodes remain do not fill the memory, nor do equal prefixes") {
  // Prefixes of any depth are about as good as their beginning: so each level takes room from those before it.
  std::mt19937 random(11);
  std::uniform_real_distribution<float> unit(0, 1);
  const auto budget = GENERATE(200, 256, 1024);
  const auto almost = GENERATE(0.0F, -1e-3F, -0.1F);
  lists from = lists_of(16, budget, [&] { return -2 - 6 * unit(random); });
  for (std::int32_t r = 1; r < from.n_rows; ++r)
    from.log_probs[static_cast<std::size_t>(r * budget)] = almost;
  CHECK(compare(from, {.budget = budget}) == "");
  // Nothing but prefixes of probability 1: the first ones in lexicographic order.
  CHECK(compare(lists_of(16, budget, [] { return 0.0F; }), {.budget = budget}) == "");
}

namespace {

void check_best_first(const best_first_options& options, std::int32_t limit, std::int32_t vocab) {
  const auto table = random_table(40, vocab, static_cast<std::uint32_t>(options.budget + options.max_depth));
  CAPTURE(options.budget, options.max_depth, options.min_gain, limit, vocab);
  best_first host(options);
  gpu::best_first device(options);
  CHECK(grow_both(host, device, table, {.limit = limit}) == "");
}

}  // namespace

TEST_CASE("The best trees of rows on the device are the host's") {
  const auto budget = GENERATE(7, 40);
  const auto max_depth = GENERATE(1, 9);
  const auto min_gain = GENERATE(0.0, 0.15);
  const auto limit = GENERATE(1 << 20, 17);
  check_best_first({.budget = budget, .max_depth = max_depth, .min_gain = min_gain}, limit, 80);
}

TEST_CASE("The best trees of rows on the device are the host's, whatever their options", "[long]") {
  const auto budget = GENERATE(1, 7, 40);
  const auto max_depth = GENERATE(1, 3, 9);
  const auto min_gain = GENERATE(0.0, 0.15);
  const auto limit = GENERATE(1 << 20, 17, 0);
  const auto vocab = GENERATE(2, 80);
  check_best_first({.budget = budget, .max_depth = max_depth, .min_gain = min_gain}, limit, vocab);
}

TEST_CASE("The largest best tree of rows is the host's, equal prefixes included", "[long]") {
  row_table<float> flat{1, 6, std::vector<float>(6, 1.0F / 6)};
  for (const auto& table : {random_table(30, 1500, 4), flat}) {
    best_first host({.budget = 1024, .max_depth = 3});
    gpu::best_first device({.budget = 1024, .max_depth = 3});
    CHECK(grow_both(host, device, table) == "");
  }
}

TEST_CASE("A row of zeros is a leaf of the best tree, and a real vocabulary's is the host's") {
  const auto table = without_rows(random_table(5, 20, 1), 1, 2);
  for (const auto& rows : {table, random_table(8, 151936, 6)}) {
    best_first host({.budget = 12, .max_depth = 5});
    gpu::best_first device({.budget = 12, .max_depth = 5});
    CHECK(grow_both(host, device, rows, {.rounds = 2}) == "");
  }
}

#if defined(ESPALIER_TEST_COUNTS_BYTES)
TEST_CASE("Lists of every node that may be asked about are for drafters that are asked alone") {
  const std::size_t before = emulator::allocated_bytes();
  constexpr std::int32_t texts = 3;
  constexpr std::size_t budget = 1024, max_depth = 16;
  gpu::best_first policy({.budget = budget, .max_depth = max_depth});
  gpu::reserve_trees<espalier_test::device_table_block<float>>(policy, texts);
  CHECK(emulator::allocated_bytes() - before < texts * 8 * max_depth * budget + 64);
  gpu::reserve_trees<espalier_test::device_table_drafter>(policy, texts);
  CHECK(emulator::allocated_bytes() - before > texts * 12 * budget * budget);
  CHECK(emulator::allocated_bytes() - before < texts * (12 * budget + 100) * budget);
}
#endif

TEST_CASE("Options of best_first on the device are checked") {
  CHECK_THROWS_AS(gpu::best_first({.budget = 0}), option_error);
  CHECK_THROWS_AS(gpu::best_first({.budget = 1025}), option_error);
  CHECK_THROWS_AS(gpu::best_first({.max_depth = 65}), option_error);
  CHECK_THROWS_AS(gpu::best_first({.min_gain = 2}), option_error);
  CHECK(gpu::best_first({.budget = 77}).max_nodes() == 77);
}
