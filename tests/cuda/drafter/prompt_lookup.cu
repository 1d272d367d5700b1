// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/drafter/prompt_lookup.cuh"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "cuda/tree_policy/same_tree.cuh"
#include "espalier/core/philox.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/decoder/grow.cuh"
#include "espalier/cuda/tree_policy/adaptive_chain.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/decoder/grow.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "raises.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::difference;
using espalier_test::start_round;
using espalier_test::to_device;

static_assert(gpu::SequenceDrafter<gpu::prompt_lookup> && !gpu::StepDrafter<gpu::prompt_lookup>);
static_assert(gpu::TreePolicy<gpu::chain, gpu::prompt_lookup>);
static_assert(gpu::TreePolicy<gpu::adaptive_chain, gpu::prompt_lookup>);

namespace {

using text_type = std::vector<token_id>;

text_type random_text(std::size_t size, std::int32_t vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  text_type text(size);
  for (token_id& t : text)
    t = static_cast<token_id>(random() % static_cast<std::uint32_t>(vocab));
  return text;
}

// Trees of two texts at once, in three lanes of which one is empty, beside the host's.
template <class HostT, class DeviceT>
std::string grow_over_lookup(const HostT& host, DeviceT device, const text_type (&texts)[2],
                             const prompt_lookup_options& options, std::int32_t limit = 1 << 20) {
  constexpr std::int32_t capacity = 5000, n_texts = 2;
  const std::int32_t most = host.max_nodes();
  text_type tokens(n_texts * (capacity + 1), 1 << 30);
  std::vector<gpu::text_state> states;
  for (std::size_t t = 0; t < n_texts; ++t) {
    std::copy(texts[t].begin(), texts[t].end(), tokens.begin() + static_cast<std::ptrdiff_t>(t * (capacity + 1)));
    states.push_back({static_cast<std::int32_t>(texts[t].size()), capacity});
  }
  const auto on_device = to_device(tokens);
  const auto state = to_device(states);
  const auto place_of = to_device(std::vector<std::int32_t>{1, 0, -1});
  const gpu::tree grown(most, n_texts);
  gpu::text_batch batch = gpu::text_batch::of(grown.writer(), {on_device.data(), state.data(), capacity});
  batch.n = 3;
  batch.place_of = place_of.data();
  batch.tree_words = static_cast<std::ptrdiff_t>(gpu::tree::n_words(most));
  device.reserve(n_texts);
  gpu::prompt_lookup drafter(options);
  drafter.reserve(most, n_texts, nullptr);
  // A round gives a text no more room than its drafter has.
  const auto limit_of = [&](const text_type& text) {
    return std::max(0, std::min(limit, options.capacity - static_cast<std::int32_t>(text.size())));
  };
  for (std::int32_t t = 0; t < n_texts; ++t)
    start_round(grown, texts[t].back(), limit_of(texts[t]), nullptr, t);
  gpu::grow(device, batch, drafter, nullptr);
  std::string found;
  for (std::int32_t t = 0; t < n_texts && found.empty(); ++t) {
    prompt_lookup host_drafter(options);
    host_drafter.begin(texts[t]);
    tree<> expected(most);
    expected.reset(texts[t].back(), limit_of(texts[t]));
    HostT policy = host;
    philox_chance chance(0, 0, 0);
    grow(policy, expected, host_drafter, chance);
    found = difference(grown, expected, t);
  }
  return found;
}

}  // namespace

TEST_CASE("Runs that are looked up on the device are the host's") {
  const auto vocab = GENERATE(2, 5, 40);
  const auto size = GENERATE(1, 2, 17, 300, 4000);
  const auto kind = GENERATE(0, 1, 2, 3);
  const prompt_lookup_options options[] = {
      {}, {.max_ngram = 1}, {.max_ngram = 5, .min_ngram = 2, .capacity = 310}, {.max_ngram = 16}};
  const auto seed = static_cast<std::uint32_t>(size + vocab);
  const text_type texts[] = {random_text(static_cast<std::size_t>(size), vocab, seed),
                             random_text(static_cast<std::size_t>(size / 2 + 1), vocab, seed + 1)};
  CAPTURE(vocab, size, kind);
  for (const std::int32_t limit : {1 << 20, 3, 0}) {
    CHECK(grow_over_lookup(chain({.length = 12}), gpu::chain({.length = 12}), texts, options[kind], limit) == "");
    const adaptive_chain_options adaptive{.length = 7, .max_length = 20};
    CHECK(grow_over_lookup(adaptive_chain(adaptive), gpu::adaptive_chain(adaptive), texts, options[kind], limit) == "");
  }
}

TEST_CASE("On the device, too, the longest match comes first, the latest of these, and a text that repeats goes on") {
  const text_type matches{1, 2, 3, 4, 9, 2, 3, 5, 8, 3, 6, 1, 2, 3}, latest{7, 1, 2, 5, 1, 2, 6, 1, 2};
  const text_type repeats{5, 1, 2, 1, 2}, same{4, 4};
  for (const prompt_lookup_options& o :
       {prompt_lookup_options{}, prompt_lookup_options{.max_ngram = 2}, prompt_lookup_options{.max_ngram = 1}}) {
    CHECK(grow_over_lookup(chain({.length = 6}), gpu::chain({.length = 6}), {matches, latest}, o) == "");
    CHECK(grow_over_lookup(chain({.length = 6}), gpu::chain({.length = 6}), {repeats, same}, o) == "");
  }
}

TEST_CASE("Options of looking up on the device are checked") {
  CHECK_THROWS_AS(gpu::prompt_lookup({.max_ngram = 17}), option_error);
  CHECK_THROWS_AS(gpu::prompt_lookup({.max_ngram = 2, .min_ngram = 3}), option_error);
  CHECK(gpu::prompt_lookup({.capacity = 77}).capacity() == 77);
}
