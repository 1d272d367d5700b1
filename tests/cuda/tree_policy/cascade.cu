// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/tree_policy/cascade.cuh"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/tree_policy/same_tree.cuh"
#include "cuda/tree_policy/table_drafter.cuh"
#include "espalier/core/philox.hpp"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/decoder/grow.cuh"
#include "espalier/cuda/drafter/joint.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/tree_policy/adaptive_chain.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/eagle2.cuh"
#include "espalier/cuda/tree_policy/fixed.cuh"
#include "espalier/decoder/grow.hpp"
#include "espalier/drafter/joint.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/best_first.hpp"
#include "espalier/tree_policy/cascade.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/eagle2.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "raises.hpp"

#if __has_include("emulator/api.hpp")
#include "emulator/api.hpp"
#define ESPALIER_TEST_COUNTS_CALLS
#endif

using namespace espalier;
namespace gpu = espalier::cuda;
using namespace espalier_test;

namespace {

using text_type = std::vector<token_id>;
constexpr std::int32_t n_texts = 2;

// Drafters of a table that can hold so many tokens.
struct host_rows : table_drafter {
  host_rows(const row_table<float>& rows, std::int32_t n) : table_drafter(rows), table(&rows), most(n) {}
  const row_table<float>* table;
  std::int32_t most;
  std::int32_t capacity() const { return most; }
  void begin(std::span<const token_id>) { passes = 0; }
};
struct device_rows : device_table_drafter {
  device_rows(const row_table<float>& rows, std::int32_t n) : device_table_drafter(rows), most(n) {}
  std::int32_t most;
  std::int32_t capacity() const { return most; }
};

// A block for each of three lanes, all the same.
struct device_blocks : device_table_block<float> {
  explicit device_blocks(const row_table<float>& block)
      : device_table_block<float>(three_of(block)), length(block.n_rows), faults(n_texts) {
    faults.fill_bytes(0, nullptr);
  }
  static row_table<float> three_of(row_table<float> block) {
    const std::vector<float> one = block.numbers;
    for (int more = 0; more < 2; ++more)
      block.numbers.insert(block.numbers.end(), one.begin(), one.end());
    block.n_rows *= 3;
    return block;
  }
  std::int32_t block_length() const { return length; }
  gpu::fault* found() const { return faults.data(); }
  std::int32_t length;
  gpu::device_array<gpu::fault> faults;
};

// Asks about nothing.
struct silent {
  static constexpr regime sampling = regime::deterministic;
  std::int32_t max_nodes() const { return 0; }
  template <class TreeT>
  std::span<const node_id> begin(TreeT&) const {
    return {};
  }
  template <class TreeT, class AnswerT, class ChanceT>
  std::span<const node_id> take(TreeT&, const AnswerT&, ChanceT&) const {
    return {};
  }
  void observe(tree_view, verdict) const {}
};
struct silent_on_device {
  static constexpr regime sampling = regime::deterministic;
  std::int32_t max_nodes() const { return 0; }
  void reserve(std::int32_t) const {}
  gpu::node_list begin(const gpu::text_batch&, cudaStream_t) const { return {}; }
  template <class AnswerT>
  gpu::node_list take(const gpu::text_batch&, const AnswerT&, cudaStream_t) const {
    return {};
  }
  void observe(const gpu::text_batch&, const verdict*, cudaStream_t) const {}
};

template <class... PartsT>
using device_joint = gpu::joint<PartsT...>;
static_assert(gpu::TreePolicy<gpu::cascade<gpu::chain>, device_joint<gpu::prompt_lookup>>);
static_assert(gpu::TreePolicy<gpu::cascade<gpu::dynatree, gpu::chain>, device_joint<device_rows&, gpu::prompt_lookup>>);
static_assert(gpu::TreePolicy<gpu::cascade<gpu::eagle2, gpu::best_first, gpu::adaptive_chain>,
                              device_joint<device_rows, device_blocks, gpu::prompt_lookup>>);
// In another order, and with one too few.
static_assert(!gpu::TreePolicy<gpu::cascade<gpu::dynatree, gpu::chain>, device_joint<gpu::prompt_lookup, device_rows>>);
static_assert(!gpu::TreePolicy<gpu::cascade<gpu::dynatree, gpu::chain>, device_joint<device_rows>>);
// One drafter is a joint of one part.
static_assert(gpu::TreePolicy<gpu::cascade<gpu::chain>, device_rows>);
static_assert(gpu::TreePolicy<gpu::chain, device_joint<device_rows>>);
static_assert(gpu::ResettingPolicy<gpu::cascade<gpu::dynatree, gpu::chain>>);
static_assert(gpu::Drafter<device_joint<device_rows>> && !gpu::AskableDrafter<device_joint<device_rows>> &&
              gpu::RenumberingDrafter<device_joint<device_rows, gpu::prompt_lookup>>);
static_assert(!gpu::ReleasingDrafter<device_joint<device_rows>>);

text_type random_text(std::size_t size, std::int32_t vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  text_type text;
  for (std::size_t i = 0; i < size; ++i)
    text.push_back(static_cast<token_id>(random() % static_cast<unsigned>(vocab)));
  return text;
}

// Where the rows of a drafter are, and what they are: empty where it has them for the nodes that the host's has, and
// each is that of its path, or nobody has asked the host's.
std::string difference_of_rows(const host_rows& host, device_rows& device, const tree<>& tree, std::int32_t place) {
  if (host.passes == 0) return "";
  const auto row_of = device.row_of(place);
  const auto rows = device.rows().rows;
  const auto vocab = static_cast<std::size_t>(rows.vocab);
  for (node_id u = 0; u < tree.size(); ++u) {
    const auto i = static_cast<std::size_t>(u);
    if ((row_of[i] >= 0) != (host.row_of()[i] >= 0)) return "the rows asked for differ at " + std::to_string(u);
    if (row_of[i] < 0) continue;
    const auto row = to_host(rows.data + row_of[i] * rows.vocab, vocab);
    const auto expected =
        host.table->numbers.begin() + table_row(tree.view(), u, host.table->n_rows) * host.table->vocab;
    if (!std::equal(row.begin(), row.end(), expected)) return "another row at " + std::to_string(u);
  }
  return device.asked(place).unlawful == 0 ? "" : "the device asked against the rules";
}
template <class HostT, class DeviceT>
std::string difference_of_rows(const HostT&, DeviceT&, const tree<>&, std::int32_t) {
  return "";
}

struct joint_growth {
  std::int32_t vocab = 8;
  std::size_t size = 30;  // of the longer text
  std::int32_t limit = 1 << 20;
  int rounds = 3;
  // Tokens by which the texts of a round are longer than those of the first.
  std::size_t (*more)(int round) = [](int round) { return static_cast<std::size_t>(5 * round); };
};

// Grows some rounds' trees of two texts at once, in three lanes of which one is empty, as replays of one graph; what was
// accepted is drawn at random. Empty where all are the host's, and the rows of step drafters follow their nodes.
template <class HostT, class DeviceT, class... HostDraftersT, class... DeviceDraftersT>
std::string grow_joint(const HostT& host, DeviceT& device, joint<HostDraftersT...> host_drafters,
                       gpu::joint<DeviceDraftersT...> device_drafters, joint_growth options = {}) {
  using drafter_type = gpu::joint<DeviceDraftersT...>;
  constexpr std::size_t max_size = 400;
  const std::int32_t capacity = gpu::most_asked<drafter_type>(device);
  if (host.max_nodes() != device.max_nodes()) return "max_nodes";
  if (capacity > espalier::most_asked(host)) return "most_asked";
  gpu::reserve_trees<drafter_type>(device, n_texts);
  host_drafters.reserve(espalier::most_asked(host));
  device_drafters.reserve(capacity, n_texts, nullptr);
  std::vector<HostT> hosts(n_texts, host);
  const gpu::tree grown(capacity, n_texts);
  const gpu::device_array<token_id> tokens(n_texts * (max_size + 1));
  const auto states = to_device(std::vector<gpu::text_state>(n_texts));
  const auto place_of = to_device(std::vector<std::int32_t>{1, 0, -1});
  gpu::text_batch texts =
      gpu::text_batch::of(grown.writer(), {tokens.data(), states.data(), static_cast<std::int32_t>(max_size)});
  texts.n = 3;
  texts.place_of = place_of.data();
  texts.tree_words = static_cast<std::ptrdiff_t>(gpu::tree::n_words(capacity));
  const auto decisions = to_device(std::vector<verdict>(n_texts));
  const gpu::stream work;
  const cudaStream_t stream = work.get();
  const gpu::graph replay(stream, [&] { gpu::grow(device, texts, device_drafters, stream); });
  std::mt19937 random(static_cast<std::uint32_t>(options.vocab + options.limit));
  for (int round = 0; round < options.rounds; ++round) {
    std::vector<text_type> now;
    for (std::int32_t t = 0; t < n_texts; ++t) {
      const std::size_t size = options.size / static_cast<std::size_t>(t + 1) + options.more(round);
      now.push_back(random_text(size, options.vocab, static_cast<std::uint32_t>(3 + 7 * t + round)));
      tokens.upload(now.back(), stream, static_cast<std::size_t>(t) * (max_size + 1));
      const std::vector<gpu::text_state> state{{static_cast<std::int32_t>(size), 1 << 20, 0, 0}};
      states.upload(std::span<const gpu::text_state>(state), stream, static_cast<std::size_t>(t));
      start_round(grown, now.back().back(), options.limit, stream, t);
      gpu::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    }
    replay.launch(stream);
    gpu::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    std::vector<verdict> accepted;
    for (std::int32_t t = 0; t < n_texts; ++t) {
      HostT& policy = hosts[static_cast<std::size_t>(t)];
      tree<> expected(capacity);
      expected.reset(now[static_cast<std::size_t>(t)].back(), options.limit);
      philox_chance chance(0, 0, 0);
      host_drafters.reserve(espalier::most_asked(host));
      host_drafters.begin(now[static_cast<std::size_t>(t)]);
      grow(policy, expected, host_drafters, chance);
      std::string found = difference(grown, expected, t);
      [&]<std::size_t... Index>(std::index_sequence<Index...>) {
        const auto compare = [&](const auto& on_host, auto& on_device) {
          if (found.empty()) found = difference_of_rows(on_host, on_device, expected, t);
        };
        (compare(std::get<Index>(host_drafters.parts()), std::get<Index>(device_drafters.parts())), ...);
      }
      (std::index_sequence_for<HostDraftersT...>());
      if (!found.empty()) return "round " + std::to_string(round) + ", text " + std::to_string(t) + ": " + found;
      accepted.push_back({static_cast<node_id>(random() % static_cast<unsigned>(expected.size())), 1});
      policy.observe(expected, accepted.back());
    }
    decisions.upload(std::span<const verdict>(accepted), stream);
    device.observe(texts, decisions.data(), stream);
    gpu::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }
  return "";
}

constexpr std::int32_t unbounded = 1 << 20;

void check_cascades(std::int32_t limit, std::int32_t vocab) {
  const auto rows = random_table(40, vocab, static_cast<std::uint32_t>(vocab)), other = random_table(7, vocab, 5);
  const joint_growth options{.vocab = vocab, .limit = limit, .rounds = 4};
  CAPTURE(limit, vocab);
  SECTION("dynatree before a run") {
    gpu::cascade device{gpu::dynatree({.budget = 20}), gpu::chain({.length = 6})};
    CHECK(grow_joint(cascade(dynatree({.budget = 20}), chain({.length = 6})), device,
                     joint(host_rows(rows, unbounded), prompt_lookup()),
                     gpu::joint(device_rows(rows, unbounded), gpu::prompt_lookup()), options) == "");
  }
  SECTION("a run before a fixed tree") {
    const fixed_options shape{.depth = 2, .breadth = 3};
    gpu::cascade device{gpu::chain({.length = 4}), gpu::fixed(shape)};
    CHECK(grow_joint(cascade(chain({.length = 4}), fixed(shape)), device,
                     joint(prompt_lookup(), host_rows(rows, unbounded)),
                     gpu::joint(gpu::prompt_lookup(), device_rows(rows, unbounded)), options) == "");
  }
  SECTION("three, two of which build their trees anew, over two draft models") {
    const eagle2_options shape{.beam = 8, .depth = 6, .budget = 12};
    const best_first_options best{.budget = 9, .max_depth = 4};
    const adaptive_chain_options adaptive{.length = 3, .max_length = 9};
    gpu::cascade device{gpu::eagle2(shape), gpu::adaptive_chain(adaptive), gpu::best_first(best)};
    CHECK(gpu::most_asked<device_joint<device_rows, gpu::prompt_lookup, device_rows>>(device) == 48);
    CHECK(grow_joint(cascade(eagle2(shape), adaptive_chain(adaptive), best_first(best)), device,
                     joint(host_rows(rows, unbounded), prompt_lookup(), host_rows(other, unbounded)),
                     gpu::joint(device_rows(rows, unbounded), gpu::prompt_lookup(), device_rows(other, unbounded)),
                     options) == "");
  }
  SECTION("the same tree twice, and a chain in it") {
    const fixed_options shape{.depth = 3, .breadth = 2};
    gpu::cascade device{gpu::fixed(shape), gpu::fixed(shape), gpu::adaptive_chain()};
    CHECK(
        grow_joint(cascade(fixed(shape), fixed(shape), adaptive_chain()), device,
                   joint(host_rows(rows, unbounded), host_rows(rows, unbounded), host_rows(rows, unbounded)),
                   gpu::joint(device_rows(rows, unbounded), device_rows(rows, unbounded), device_rows(rows, unbounded)),
                   options) == "");
  }
  SECTION("blocks") {
    row_table<float> logits{6, vocab};
    for (std::int32_t i = 0; i < 6 * vocab; ++i)
      logits.numbers.push_back(static_cast<float>((i * 37 + i / vocab) % 23) / 4);
    const best_first_options best{.budget = 15, .max_depth = 6};
    gpu::cascade device{gpu::best_first(best), gpu::chain({.length = 5}), gpu::dynatree({.budget = 9})};
    CHECK(grow_joint(cascade(best_first(best), chain({.length = 5}), dynatree({.budget = 9})), device,
                     joint(table_block(logits), prompt_lookup(), host_rows(rows, unbounded)),
                     gpu::joint(device_blocks(logits), gpu::prompt_lookup(), device_rows(rows, unbounded)),
                     options) == "");
  }
}

}  // namespace

TEST_CASE("Cascades of the device are the host's") {
  const auto limit = GENERATE(1 << 20, 3);
  check_cascades(limit, 40);
}

TEST_CASE("Cascades of the device are the host's, whatever their room", "[long]") {
  const auto limit = GENERATE(1 << 20, 14, 3, 1, 0);
  const auto vocab = GENERATE(3, 40);
  check_cascades(limit, vocab);
}

TEST_CASE("A cascade of more nodes than a block has threads is the host's", "[long]") {
  const auto rows = random_table(30, 200, 4), other = random_table(11, 200, 9);
  const auto limit = GENERATE(1 << 20, 700);
  const eagle2_options shape{.beam = 32, .depth = 3, .budget = 500};
  const fixed_options wide{.depth = 2, .breadth = 60, .budget = 400};
  gpu::cascade device{gpu::eagle2(shape), gpu::fixed(wide), gpu::chain({.length = 40})};
  CHECK(grow_joint(cascade(eagle2(shape), fixed(wide), chain({.length = 40})), device,
                   joint(host_rows(rows, unbounded), host_rows(other, unbounded), prompt_lookup()),
                   gpu::joint(device_rows(rows, unbounded), device_rows(other, unbounded), gpu::prompt_lookup()),
                   {.vocab = 3, .limit = limit, .rounds = 1}) == "");
}

TEST_CASE("A drafter without room drafts nothing on the device, and the others go on") {
  // The texts have 30 and 15 tokens, then 5 more each round.
  const auto first = GENERATE(0, 16, 31, 37, 44), second = GENERATE(20, 1 << 20);
  const auto rows = random_table(40, 6, 1), other = random_table(9, 6, 2);
  CAPTURE(first, second);
  gpu::cascade device{gpu::dynatree({.budget = 20}), gpu::chain({.length = 4}), gpu::eagle2({.beam = 3, .depth = 2})};
  CHECK(
      grow_joint(cascade(dynatree({.budget = 20}), chain({.length = 4}), eagle2({.beam = 3, .depth = 2})), device,
                 joint(host_rows(rows, first), prompt_lookup({.capacity = 36}), host_rows(other, second)),
                 gpu::joint(device_rows(rows, first), gpu::prompt_lookup({.capacity = 36}), device_rows(other, second)),
                 {.vocab = 6, .rounds = 5}) == "");
}

TEST_CASE("A drafter that has room now and then teaches its policy on the device what it teaches on the host") {
  // The texts have 12 and 6 tokens in every other round, then 60 more.
  const auto where = GENERATE(0, 1);
  const auto rows = random_table(40, 3, 1);
  const joint_growth options{
      .vocab = 3, .size = 12, .rounds = 12, .more = [](int round) -> std::size_t { return round % 2 == 0 ? 0 : 60; }};
  const adaptive_chain_options adaptive{.length = 3, .max_length = 9, .confidence = 0};
  if (where == 0) {
    gpu::cascade device{gpu::adaptive_chain(adaptive), gpu::chain({.length = 6})};
    CHECK(grow_joint(cascade(adaptive_chain(adaptive), chain({.length = 6})), device,
                     joint(host_rows(rows, 40), prompt_lookup()),
                     gpu::joint(device_rows(rows, 40), gpu::prompt_lookup()), options) == "");
  } else {
    gpu::cascade device{gpu::chain({.length = 6}), gpu::dynatree({.budget = 12}), gpu::adaptive_chain(adaptive)};
    CHECK(grow_joint(cascade(chain({.length = 6}), dynatree({.budget = 12}), adaptive_chain(adaptive)), device,
                     joint(prompt_lookup(), host_rows(rows, 40), host_rows(rows, 40)),
                     gpu::joint(gpu::prompt_lookup(), device_rows(rows, 40), device_rows(rows, 40)), options) == "");
  }
}

TEST_CASE("A policy of a cascade that drafts nothing leaves the others' tree") {
  const auto rows = random_table(40, 12, 1);
  const auto none = without_rows(random_table(5, 12, 2), 0, 5);
  const auto where = GENERATE(0, 1, 2);
  const chain_options length{.length = 5};
  if (where == 0) {
    gpu::cascade device{silent_on_device(), gpu::chain(length)};
    CHECK(grow_joint(cascade(silent(), chain(length)), device,
                     joint(host_rows(none, unbounded), host_rows(rows, unbounded)),
                     gpu::joint(device_rows(none, unbounded), device_rows(rows, unbounded))) == "");
  } else if (where == 1) {
    gpu::cascade device{gpu::chain(length), silent_on_device()};
    CHECK(grow_joint(cascade(chain(length), silent()), device, joint(host_rows(rows, unbounded), prompt_lookup()),
                     gpu::joint(device_rows(rows, unbounded), gpu::prompt_lookup())) == "");
  } else {
    // No row has a token, and no text says the same twice.
    gpu::cascade device{gpu::fixed(fixed_options{}), gpu::chain(length), gpu::chain(length)};
    CHECK(grow_joint(cascade(fixed(fixed_options{}), chain(length), chain(length)), device,
                     joint(host_rows(none, unbounded), prompt_lookup({.max_ngram = 6, .min_ngram = 5}),
                           host_rows(rows, unbounded)),
                     gpu::joint(device_rows(none, unbounded), gpu::prompt_lookup({.max_ngram = 6, .min_ngram = 5}),
                                device_rows(rows, unbounded))) == "");
  }
}

TEST_CASE("What the policies of a cascade have learnt is dropped when a text begins") {
  const auto rows = random_table(20, 50, 9);
  const auto grow_both = [&](auto& device) {
    return grow_joint(cascade(dynatree(), adaptive_chain()), device, joint(host_rows(rows, unbounded), prompt_lookup()),
                      gpu::joint(device_rows(rows, unbounded), gpu::prompt_lookup()), {.vocab = 4, .rounds = 10});
  };
  gpu::cascade device{gpu::dynatree(), gpu::adaptive_chain()};
  CHECK(grow_both(device) == "");
  // In its first bytes an adaptive chain has options and length.
  const auto of_chain = [&](std::size_t place) {
    const auto& chain = std::get<1>(device.parts());
    return to_host(chain.learnt() + place * chain.learnt_bytes(), sizeof(adaptive_chain_options) + 4);
  };
  auto fresh = std::get<1>(device.parts()).learnt_with({});
  fresh.resize(sizeof(adaptive_chain_options) + 4);
  CHECK(of_chain(0) != fresh);
  CHECK(of_chain(1) != fresh);
  device.reset(0, nullptr);
  gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  CHECK(of_chain(0) == fresh);
  CHECK(of_chain(1) != fresh);
}

TEST_CASE("A cascade of too many nodes is an error") {
  struct endless : silent_on_device {
    std::int32_t max_nodes() const { return 1 << 20; }
  };
  CHECK(says(message_of<option_error>([&] {
               gpu::cascade policy{endless(), gpu::chain({.length = 5})};
             }),
             "nodes of the cascade is 1048581"));
  CHECK(gpu::cascade(gpu::chain({.length = 5}), gpu::fixed({.budget = 9})).max_nodes() == 14);
}

#if defined(ESPALIER_TEST_COUNTS_CALLS)
TEST_CASE("A cascade of n policies adds n + 1 launches, one for each step drafter, and no memory") {
  const auto rows = random_table(20, 50, 9);
  const gpu::tree grown(40);
  const auto states = to_device(std::vector<gpu::text_state>{{5, 1 << 20, 0, 0}});
  const auto tokens = to_device(text_type{1, 2, 3, 1, 2, 0});
  const gpu::text_batch texts = gpu::text_batch::of(grown.writer(), {tokens.data(), states.data(), 5});
  const auto launches = [&](auto& policy, auto&& drafter) {
    using drafter_type = std::remove_reference_t<decltype(drafter)>;
    gpu::reserve_trees<drafter_type>(policy, 1);
    drafter.reserve(40, 1, nullptr);
    start_round(grown, 2, 40);
    emulator::reset();
    gpu::grow(policy, texts, drafter, nullptr);
    const auto n = emulator::calls("cudaLaunchKernelEx");
    for (const char* call : {"cudaMalloc", "cudaFree", "cudaMemcpy", "cudaStreamSynchronize", "cudaDeviceSynchronize"})
      CHECK(emulator::calls(call) == 0);
    return n;
  };
  gpu::dynatree tree({.budget = 20});
  gpu::chain run({.length = 6});
  gpu::cascade both{gpu::dynatree({.budget = 20}), gpu::chain({.length = 6})};
  const auto apart = launches(tree, device_rows(rows, unbounded)) + launches(run, gpu::prompt_lookup());
  CHECK(launches(both, gpu::joint(device_rows(rows, unbounded), gpu::prompt_lookup())) == apart + 3 + 1);
}
#endif
