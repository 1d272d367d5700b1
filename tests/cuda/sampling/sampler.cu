// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/sampling/sampler.cuh"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "espalier/core/philox.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/sampling/sampler.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "raises.hpp"
#include "rows.cuh"

using namespace espalier;
using namespace espalier_test;
namespace device = espalier::cuda;

namespace {

struct made_rows {
  std::vector<float> rows;
  std::vector<std::int32_t> row_of;
  device::fault fault;
};

constexpr float poison = -7;

// Node u gets row place of the logits where asked[place] is u.
template <class LogitT>
made_rows make(const std::vector<LogitT>& logits, std::int32_t vocab, sampling_options options,
               const std::vector<node_id>& asked) {
  const std::size_t nodes = asked.size() + 2;
  const device::device_array<LogitT> numbers = to_device(logits);
  const device::device_array<node_id> list = to_device(asked);
  const device::device_array<float> rows =
      to_device(std::vector<float>(nodes * static_cast<std::size_t>(vocab), poison));
  const device::device_array<std::int32_t> row_of = to_device(std::vector<std::int32_t>(nodes, -1));
  const device::device_array<device::fault> fault = to_device(std::vector<device::fault>(1));
  device::sampler<LogitT> sampler(options);
  const auto n = static_cast<std::int32_t>(asked.size());
  sampler.reserve(n, vocab);
  sampler.run({numbers.data(), n, vocab}, {}, {list.data(), n}, rows.data(), row_of.data(),
              static_cast<std::int32_t>(nodes), fault.data(), row_origin::after_node(row_origin::model::draft, 4, 0),
              nullptr);
  return {to_host(rows), to_host(row_of), to_host(fault)[0]};
}

// How a row differs from the host's.
struct difference {
  std::size_t bits = 0;     // numbers that are not the same
  std::size_t support = 0;  // of which one is zero
  double largest = 0;
};

difference differ(const float* found, const std::vector<float>& expected) {
  difference d;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    d.bits += std::memcmp(&found[i], &expected[i], sizeof(float)) != 0 ? 1U : 0U;
    d.support += (found[i] > 0) != (expected[i] > 0) ? 1U : 0U;
    d.largest = std::max(d.largest, std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i])));
  }
  return d;
}

const std::vector<sampling_options> all_options{
    {.temperature = 0.0F},
    {.temperature = 1.0F},
    {.temperature = 0.3F},
    {.temperature = 1.0F, .min_p = 0.05F},
    {.temperature = 0.8F, .top_k = 20},
    {.temperature = 1.0F, .top_k = 1},
    {.temperature = 1.0F, .top_k = 1024, .top_p = 0.7F},
    {.temperature = 0.6F, .top_k = 50, .top_p = 0.95F},
    {.temperature = 1.0F, .top_k = 64, .top_p = 0.9F, .min_p = 0.3F},
    {.temperature = 2.0F, .top_k = 64, .min_p = 0.1F},
    {.temperature = 1.0F, .top_p = 0.9F},
    {.temperature = 0.7F, .top_p = 0.5F},
    {.temperature = 1.0F, .top_p = 0.999F},
    {.temperature = 1.0F, .top_p = 0.95F, .min_p = 0.2F},
    {.temperature = 1.0F, .top_p = 1e-6F},
};

template <class LogitT>
void compare_all(std::int32_t vocab, const std::vector<sampling_options>& options) {
  const std::vector<named_row> rows = hard_rows(static_cast<std::size_t>(vocab), false);
  std::vector<LogitT> logits;
  std::vector<node_id> asked;
  for (const named_row& row : rows) {
    for (const float x : row.logits)
      logits.push_back(as<LogitT>(x));
    asked.push_back(static_cast<node_id>(rows.size() - asked.size()));
  }
  asked[2] = no_node;
  for (const sampling_options& option : options) {
    const made_rows made = make(logits, vocab, option, asked);
    REQUIRE(made.fault.what == device::fault::kind::none);
    sampler<float> host(option);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      if (asked[r] == no_node) continue;
      INFO(rows[r].name << ", " << vocab << " tokens, T " << option.temperature << ", k " << option.top_k << ", p "
                        << option.top_p << ", min_p " << option.min_p);
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(r) * vocab;
      const std::vector<float> row = as_floats(std::span<const LogitT>(first, first + vocab));
      std::vector<float> expected(row.size());
      host.probabilities(row, expected, 0);
      const auto u = static_cast<std::size_t>(asked[r]);
      REQUIRE(made.row_of[u] == asked[r]);
      const difference d = differ(made.rows.data() + u * row.size(), expected);
      CHECK(d.bits == 0);
      CHECK(d.support == 0);
      CHECK(d.largest == 0);
    }
    // What nobody asked for is untouched.
    CHECK(made.row_of[0] == -1);
    CHECK(made.row_of[rows.size() - 2] == -1);
    CHECK(made.rows[0] == poison);
    CHECK(made.rows[(rows.size() - 2) * static_cast<std::size_t>(vocab)] == poison);
  }
}

}  // namespace

TEMPLATE_TEST_CASE("the device's rows are the host's, bit for bit", "", float, __half, __nv_bfloat16) {
  const bool is_float = std::is_same_v<TestType, float>;
  for (const std::int32_t vocab :
       is_float ? std::vector<std::int32_t>{1, 31, 1025, 9000} : std::vector<std::int32_t>{1000})
    compare_all<TestType>(vocab, all_options);
}

TEST_CASE("rows of a large vocabulary are the host's") {
  const auto major = GENERATE(9, 8);
  const emulated_capability capability(major);
  compare_all<float>(151936, {all_options[0], all_options[1], all_options[7], all_options[10]});
}

TEMPLATE_TEST_CASE("a logit that is NaN or plus infinity is a fault, and its row is all zeros", "", float, __half,
                   __nv_bfloat16) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::int32_t vocab : {1, 1000, 20000}) {
    for (const std::int32_t at : {0, vocab / 2, vocab - 1}) {
      for (const float bad : {nan, infinity}) {
        for (const sampling_options options :
             {sampling_options{}, sampling_options{.temperature = 1}, sampling_options{.temperature = 1, .top_k = 5}}) {
          std::vector<TestType> logits(static_cast<std::size_t>(2 * vocab), as<TestType>(1.5F));
          if (vocab == 1000) std::fill(logits.begin() + vocab, logits.end(), as<TestType>(-infinity));
          logits[static_cast<std::size_t>(vocab + at)] = as<TestType>(bad);
          if (at + 2 < vocab) logits[static_cast<std::size_t>(vocab + at + 2)] = as<TestType>(nan);
          const made_rows made = make(logits, vocab, options, {3, 1});
          REQUIRE(made.fault.what == device::fault::kind::bad_logit);
          CHECK(says(message_of<numeric_error>([&] { device::raise_fault(made.fault); }),
                     "the draft's logit of token " + std::to_string(at) + " after node 1 of sequence 4 is ",
                     bad == infinity ? "inf" : "nan"));
          const auto row = made.rows.begin() + vocab;
          CHECK(std::all_of(row, row + vocab, [](float p) { return p == 0; }));
          CHECK(made.rows[3 * static_cast<std::size_t>(vocab)] > 0);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("a row of nothing but minus infinity is a fault, and all zeros", "", float, __half, __nv_bfloat16) {
  for (const std::int32_t vocab : {1, 1000, 20000}) {
    for (const sampling_options& options : all_options) {
      std::vector<TestType> logits(static_cast<std::size_t>(2 * vocab), as<TestType>(1.5F));
      std::fill(logits.begin() + vocab, logits.end(), as<TestType>(-infinity));
      const made_rows made = make(logits, vocab, options, {3, 1});
      REQUIRE(made.fault.what == device::fault::kind::no_token);
      CHECK(says(message_of<numeric_error>([&] { device::raise_fault(made.fault); }),
                 "all of the draft's logits after node 1 of sequence 4 are minus infinity"));
      const auto row = made.rows.begin() + vocab;
      CHECK(std::all_of(row, row + vocab, [](float p) { return p == 0; }));
    }
  }
}

TEST_CASE("rows of one logit far above the others, and of extreme ones") {
  for (const sampling_options& option : all_options) {
    std::vector<float> logits(3000, -3e38F);
    logits[17] = 3e38F;
    logits[2017] = 1;
    const made_rows made = make(logits, 3000, option, {0});
    CHECK(made.fault.what == device::fault::kind::none);
    std::vector<float> expected(3000);
    sampler<float>(option).probabilities(logits, expected, 0);
    CHECK(differ(made.rows.data(), expected).bits == 0);
  }
}

TEST_CASE("options of samplers out of range are errors that name them") {
  CHECK(says(message_of<option_error>([] { device::sampler<float>({.temperature = -1}); }), "temperature"));
  CHECK(says(message_of<option_error>([] { device::sampler<float>({.temperature = 1, .top_p = 0}); }), "top_p"));
  device::sampler<float> sampler({.temperature = 1, .top_k = 1025});
  CHECK(says(message_of<option_error>([&] { sampler.reserve(1, 32000); }), "top_k on the device"));
  CHECK_NOTHROW(sampler.reserve(1, 1025));
  CHECK(says(message_of<option_error>([&] {
               sampler.run({nullptr, 1, 8}, {}, {nullptr, 1}, nullptr, nullptr, 1, nullptr, {}, nullptr);
             }),
             "vocabulary"));
}

namespace {

template <class UnusedT = void>
__global__ void reset_kernel(tree_writer tree, std::int32_t limit) {
  tree.reset(0, limit);
}

// Draws `n` tokens with replacement and, from a tree of one node, as many without.
template <class UnusedT = void>
__global__ void draw_kernel(const float* row, std::int32_t vocab, device::text_batch texts, tree_writer tree,
                            std::int32_t n, token_id* drawn, token_id* left) {
  using device::team;
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(device::shared_memory()), turns);
  const philox_chance chance = texts.at(0).chance();
  const row_view<float, team> weights(row, static_cast<std::size_t>(vocab), who);
  for (std::int32_t i = 0; i < n; ++i) {
    const token_id token = chance.pick(weights, {root_node, i, purpose::draft});
    const token_id other =
        chance.pick(undrawn<float, team>(tree.view(), root_node, weights), {root_node, i, purpose::draft});
    who.sync();
    if (who.rank() == 0) {
      drawn[i] = token;
      left[i] = other;
      if (other >= 0) tree.append(root_node, other, 0);
    }
    who.sync();
  }
}

}  // namespace

TEST_CASE("tokens drawn from the device's rows are the host's") {
  const std::int32_t vocab = 32000, n = 20;
  const named_row from = hard_rows(vocab, true)[1];
  for (const sampling_options options :
       {sampling_options{.temperature = 1}, sampling_options{.temperature = 1, .top_k = 15}}) {
    const made_rows made = make(from.logits, vocab, options, {0});
    const std::vector<float> row(made.rows.begin(), made.rows.begin() + vocab);
    const device::device_array<float> weights = to_device(row);
    const device::device_array<token_id> drawn(n), left(n);
    const device::device_array<device::text_state> state = to_device(std::vector<device::text_state>{{7, 0, 3, 11}});
    const device::tree grown(n);
    tree host_tree(n);
    host_tree.reset(0);
    const tree_writer writer = grown.writer();
    device::launch("reset", reset_kernel<>, {}, nullptr, writer, n);
    device::launch("draw", draw_kernel<>, {.threads = 256, .shared_bytes = sizeof(device::team::memory)}, nullptr,
                   weights.data(), vocab, device::text_batch::of(writer, {nullptr, state.data(), 0}), writer, n,
                   drawn.data(), left.data());
    const std::vector<token_id> found = to_host(drawn), found_left = to_host(left);
    std::vector<float> expected(row.size());
    sampler<float>(options).probabilities(from.logits, expected, 0);
    const philox_chance chance(11, 3, 7);
    for (std::int32_t i = 0; i < n; ++i) {
      const chance_key at{root_node, i, purpose::draft};
      const std::span<const float> span(expected);
      CHECK(found[static_cast<std::size_t>(i)] == chance.pick(span, at));
      const token_id other = chance.pick(undrawn(host_tree.view(), root_node, span), at);
      CHECK(found_left[static_cast<std::size_t>(i)] == other);
      if (other >= 0) host_tree.append(root_node, other, 0);
    }
  }
}
