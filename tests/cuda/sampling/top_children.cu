// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/sampling/top_children.cuh"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"
#include "cuda/support.cuh"
#include "espalier/cuda/sampling/argmax.cuh"
#include "espalier/sampling/softmax.hpp"
#include "espalier/sampling/top_k.hpp"
#include "raises.hpp"
#include "rows.cuh"

using namespace espalier;
using namespace espalier_test;
namespace device = espalier::cuda;

namespace {

// Rows of probabilities, zeros among them, from rows of numbers.
std::vector<float> probable(const std::vector<named_row>& rows) {
  std::vector<float> all;
  for (const named_row& row : rows) {
    for (const float x : row.logits)
      all.push_back(x > 0 ? std::ldexp(x, -16) : 0.0F);
  }
  std::mt19937 random(4);
  for (std::size_t i = 0; i < rows[0].logits.size(); ++i)
    all.push_back(random() % 3 == 0 ? std::ldexp(1.0F, -static_cast<int>(random() % 149)) : 0.0F);
  return all;
}

void compare_all(std::int32_t vocab, const std::vector<std::int32_t>& breadths) {
  const std::vector<float> rows = probable(hard_rows(static_cast<std::size_t>(vocab), true));
  const auto n_rows = static_cast<std::int32_t>(rows.size()) / vocab;
  const device::device_array<float> data = to_device(rows);
  // Node u has row n_rows - u; node 0 has none.
  std::vector<std::int32_t> row_of;
  std::vector<node_id> asked{0, no_node};
  for (node_id u = 0; u <= n_rows; ++u) {
    row_of.push_back(u == 0 ? -1 : n_rows - u);
    if (u > 0) asked.push_back(u);
  }
  const device::device_array<std::int32_t> rows_of = to_device(row_of);
  const device::device_array<node_id> list = to_device(asked);
  for (const std::int32_t k : breadths) {
    const std::size_t n = asked.size() * static_cast<std::size_t>(k);
    const device::device_array<token_id> tokens(n);
    const device::device_array<float> probabilities(n), log_probs(n);
    const device::device_array<std::int32_t> counts(asked.size());
    counts.fill_bytes(0xAB, nullptr);
    device::top_children(vocab).find(
        {}, {{data.data(), n_rows, vocab}, rows_of.data()}, {list.data(), static_cast<std::int32_t>(asked.size())},
        {tokens.data(), probabilities.data(), log_probs.data(), counts.data(), k}, nullptr);
    const std::vector<token_id> found = to_host(tokens);
    const std::vector<float> p = to_host(probabilities), log_p = to_host(log_probs);
    const std::vector<std::int32_t> found_counts = to_host(counts);
    for (std::size_t i = 0; i < asked.size(); ++i) {
      INFO("row " << n_rows - asked[i] << ", " << vocab << " tokens, k " << k);
      std::vector<candidate<float>> expected(static_cast<std::size_t>(k));
      std::int32_t count = 0;
      if (i > 1) {
        const float* row = rows.data() + static_cast<std::ptrdiff_t>(n_rows - asked[i]) * vocab;
        count = top_k(std::span(row, static_cast<std::size_t>(vocab)), std::span(expected));
      }
      REQUIRE(found_counts[i] == count);
      std::size_t wrong = 0;
      for (std::size_t c = 0; c < expected.size(); ++c) {
        const std::size_t at = i * expected.size() + c;
        const bool there = c < static_cast<std::size_t>(count);
        const float probability = there ? expected[c].probability : 0;
        const float log_prob = there ? detail::log_prob_of(static_cast<double>(probability)) : -infinity;
        wrong += found[at] != (there ? expected[c].token : -1) ? 1U : 0U;
        wrong += p[at] != probability ? 1U : 0U;
        wrong += std::memcmp(&log_p[at], &log_prob, sizeof log_prob) != 0 ? 1U : 0U;
      }
      REQUIRE(wrong == 0);
    }
  }
}

}  // namespace

TEST_CASE("the device's best children are the host's") {
  for (const std::int32_t vocab : {1, 31, 1000, 4096, 9000})
    compare_all(vocab, {1, 2, 16, 64});
  compare_all(32000, {1024});
}

TEST_CASE("best children in a large vocabulary") {
  const auto major = GENERATE(9, 8);
  const emulated_capability capability(major);
  compare_all(151936, {4, 64});
}

TEST_CASE("options of best children out of range are errors that name them") {
  CHECK(says(message_of<option_error>([] { device::top_children(0); }), "vocabulary"));
  const device::top_children top(10);
  const device::text_rows rows{{nullptr, 1, 10}};
  CHECK(says(message_of<option_error>([&] { top.find({}, rows, {nullptr, 1}, {.k = 0}, nullptr); }), "k"));
  CHECK(says(message_of<option_error>([&] { top.find({}, rows, {nullptr, 1}, {.k = 1025}, nullptr); }), "k"));
}

TEMPLATE_TEST_CASE("the device's most probable tokens are the host's", "", float, __half, __nv_bfloat16) {
  for (const std::int32_t vocab : {1, 31, 1025, 40000}) {
    std::vector<TestType> logits;
    std::size_t n = 0;
    for (const named_row& row : hard_rows(static_cast<std::size_t>(vocab), false)) {
      ++n;
      for (const float x : row.logits)
        logits.push_back(as<TestType>(x));
    }
    const device::device_array<token_id> tokens(n);
    device::fault fault;
    const auto run = [&] {
      const device::device_array<TestType> numbers = to_device(logits);
      const device::device_array<device::fault> found = to_device(std::vector<device::fault>(1));
      device::argmax<TestType>({numbers.data(), static_cast<std::int32_t>(n), vocab}, tokens.data(), found.data(),
                               row_origin::after_node(row_origin::model::target, 5, 0), nullptr);
      fault = to_host(found)[0];
      return to_host(tokens);
    };
    const std::vector<token_id> found = run();
    CHECK(fault.what == device::fault::kind::none);
    for (std::size_t r = 0; r < n; ++r) {
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(r) * vocab;
      CHECK(found[r] == argmax(as_floats(std::span<const TestType>(first, first + vocab)), 0));
    }
    const std::string node = "after node " + std::to_string(n - 1) + " of sequence 5 ";
    logits.back() = as<TestType>(infinity);
    CHECK(run().back() == -1);
    CHECK(says(message_of<numeric_error>([&] { device::raise_fault(fault); }),
               "the target's logit of token " + std::to_string(vocab - 1) + " " + node + "is inf"));
    std::fill(logits.end() - vocab, logits.end(), as<TestType>(-infinity));
    CHECK(run().back() == -1);
    CHECK(says(message_of<numeric_error>([&] { device::raise_fault(fault); }),
               "all of the target's logits " + node + "are minus infinity"));
  }
}
