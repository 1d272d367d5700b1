// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/sampling/top_tokens.cuh"

#include <algorithm>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "../support.cuh"
#include "catch.hpp"
#include "espalier/sampling/top_tokens.hpp"
#include "raises.hpp"
#include "rows.cuh"

using namespace espalier;
using namespace espalier_test;
namespace device = espalier::cuda;

namespace {

struct found_lists {
  std::vector<token_id> tokens;
  std::vector<float> log_probs;
  std::vector<std::int32_t> counts;
  std::vector<double> log_totals;
  device::fault fault;
};

// What the device finds, its memory poisoned before. The logits begin `offset` numbers after an address that is a
// multiple of 16.
template <class LogitT>
found_lists find(const std::vector<LogitT>& logits, std::int32_t vocab, std::int32_t k, float temperature = 1,
                 std::size_t offset = 0) {
  const auto n_rows = static_cast<std::int32_t>(logits.size()) / vocab;
  std::vector<LogitT> shifted(offset, as<LogitT>(99.0F));
  shifted.insert(shifted.end(), logits.begin(), logits.end());
  const device::device_array<LogitT> numbers = to_device(shifted);
  const std::size_t n = static_cast<std::size_t>(n_rows) * static_cast<std::size_t>(k);
  const device::device_array<token_id> tokens(n);
  const device::device_array<float> log_probs(n);
  const device::device_array<std::int32_t> counts(static_cast<std::size_t>(n_rows));
  const device::device_array<double> log_totals(static_cast<std::size_t>(n_rows));
  const device::device_array<device::fault> fault = to_device(std::vector<device::fault>(1));
  tokens.fill_bytes(0xAB, nullptr);
  log_probs.fill_bytes(0xAB, nullptr);
  counts.fill_bytes(0xAB, nullptr);
  log_totals.fill_bytes(0xAB, nullptr);
  const device::top_tokens<LogitT> top(vocab);
  top.of_logits({numbers.data() + offset, n_rows, vocab}, temperature,
                {tokens.data(), log_probs.data(), counts.data(), log_totals.data(), k}, fault.data(),
                row_origin::of_block(0), nullptr);
  return {to_host(tokens), to_host(log_probs), to_host(counts), to_host(log_totals), to_host(fault)[0]};
}

bool same_bits(double a, double b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}
bool same_bits(float a, float b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

// Compares row r with what the host finds.
void compare(const found_lists& found, std::size_t r, std::vector<float> logits, std::int32_t k,
             float temperature = 1) {
  for (float& x : logits)
    x *= 1.0F / temperature;
  top_tokens<float> top;
  std::vector<ranked_token<float>> expected(static_cast<std::size_t>(k));
  const std::int32_t n = top.of_logits(logits, expected, 0);
  REQUIRE(found.counts[r] == n);
  REQUIRE(same_bits(found.log_totals[r], top.log_total()));
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const std::size_t at = r * expected.size() + i;
    const bool there = i < static_cast<std::size_t>(n);
    wrong += found.tokens[at] != (there ? expected[i].token : 0) ? 1U : 0U;
    wrong += !same_bits(found.log_probs[at], there ? expected[i].log_prob : -infinity) ? 1U : 0U;
  }
  REQUIRE(wrong == 0);
}

}  // namespace

TEMPLATE_TEST_CASE("the device's top tokens are the host's, bit for bit", "", float, __half, __nv_bfloat16) {
  for (const std::int32_t vocab : {1, 31, 64, 1000, 1024, 1025, 2049, 8192, 32000}) {
    const std::vector<named_row> rows = hard_rows(static_cast<std::size_t>(vocab), false);
    std::vector<TestType> logits;
    for (const named_row& row : rows) {
      for (const float x : row.logits)
        logits.push_back(as<TestType>(x));
    }
    for (const std::int32_t k :
         vocab < 8192 ? std::vector<std::int32_t>{1, 64, 1024} : std::vector<std::int32_t>{512}) {
      const found_lists found = find(logits, vocab, k);
      CHECK(found.fault.what == device::fault::kind::none);
      for (std::size_t r = 0; r < rows.size(); ++r) {
        INFO(rows[r].name << ", " << vocab << " tokens, k " << k);
        const auto first = logits.begin() + static_cast<std::ptrdiff_t>(r) * vocab;
        compare(found, r, as_floats(std::span<const TestType>(first, first + vocab)), k);
      }
    }
  }
}

TEST_CASE("rows of a large vocabulary") {
  const std::int32_t vocab = 151936;
  const std::vector<named_row> rows = hard_rows(vocab, false);
  std::vector<float> logits;
  for (const named_row& row : rows)
    logits.insert(logits.end(), row.logits.begin(), row.logits.end());
  const auto blocks = GENERATE(8, 1);  // the latter as on devices without clusters
  const emulated_capability capability(blocks == 8 ? 9 : 8);
  for (const std::int32_t k : {64, 1024}) {
    const found_lists found = find(logits, vocab, k);
    CHECK(found.fault.what == device::fault::kind::none);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      INFO(rows[r].name << ", k " << k << ", " << blocks << " blocks");
      compare(found, r, rows[r].logits, k);
    }
  }
}

TEST_CASE("the largest vocabulary") {
  const std::int32_t vocab = 1 << 20;
  std::vector<float> logits = hard_rows(vocab, true)[1].logits;
  const auto major = GENERATE(9, 8);
  const emulated_capability capability(major);
  compare(find(logits, vocab, 512), 0, logits, 512);
  logits.assign(logits.size(), 2.5F);
  compare(find(logits, vocab, 512), 0, logits, 512);
}

TEMPLATE_TEST_CASE("rows may begin at any address, and have a temperature", "", float, __half, __nv_bfloat16) {
  for (const std::int32_t vocab : {999, 10001}) {
    const std::vector<named_row> rows = hard_rows(static_cast<std::size_t>(vocab), true);
    std::vector<TestType> logits;
    for (const std::size_t r : {0U, 1U, 9U}) {
      for (const float x : rows[r].logits)
        logits.push_back(as<TestType>(x));
    }
    for (const std::size_t offset : {0U, 1U, 2U, 4U}) {
      for (const float temperature : {1.0F, 0.7F, 0.1F}) {
        INFO(vocab << " tokens, offset " << offset << ", temperature " << temperature);
        const found_lists found = find(logits, vocab, 100, temperature, offset);
        for (std::size_t r = 0; r < 3; ++r) {
          const auto first = logits.begin() + static_cast<std::ptrdiff_t>(r) * vocab;
          compare(found, r, as_floats(std::span<const TestType>(first, first + vocab)), 100, temperature);
        }
      }
    }
  }
}

TEMPLATE_TEST_CASE("logits that no token may be drawn from are a fault of their row", "", float, __half,
                   __nv_bfloat16) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::int32_t largest = std::is_same_v<TestType, float> ? 20000 : 1025;
  for (const std::int32_t vocab : {1, 5, 1024, largest}) {
    for (const std::int32_t at : {0, vocab / 2, vocab - 1}) {
      for (const float bad : {nan, -nan, infinity}) {
        for (const float others : {1.0F, -infinity, -65504.0F}) {
          std::vector<TestType> logits(static_cast<std::size_t>(3 * vocab), as<TestType>(others));
          std::fill(logits.begin(), logits.begin() + vocab, as<TestType>(2.0F));
          std::fill(logits.end() - vocab, logits.end(), as<TestType>(2.0F));
          logits[static_cast<std::size_t>(vocab + at)] = as<TestType>(bad);
          const found_lists found = find(logits, vocab, 3);
          REQUIRE(found.fault.what == device::fault::kind::bad_logit);
          CHECK(says(message_of<numeric_error>([&] { device::raise_fault(found.fault); }),
                     "the draft's logit of token " + std::to_string(at) + " in row 1 of the block is "));
          CHECK(found.fault.token == at);
          CHECK((bad == infinity ? found.fault.value == bad : found.fault.value != found.fault.value));
          CHECK(found.counts[1] == 0);
          CHECK(found.counts[0] == std::min(3, vocab));
          CHECK(found.log_probs[3] == -infinity);
          CHECK(found.tokens[3] == 0);
        }
      }
    }
    const found_lists found =
        find(std::vector<TestType>(static_cast<std::size_t>(vocab), as<TestType>(-infinity)), vocab, 3);
    CHECK(found.fault.what == device::fault::kind::no_token);
    CHECK(says(message_of<numeric_error>([&] { device::raise_fault(found.fault); }),
               "all of the draft's logits in row 0 of the block are minus infinity"));
    CHECK(found.counts[0] == 0);
  }
}

TEST_CASE("without room for tokens the row is checked and normalised all the same") {
  std::vector<float> logits{1, 1, 1, 1};
  compare(find(logits, 4, 0), 0, logits, 0);
  logits[2] = -std::numeric_limits<float>::quiet_NaN();
  CHECK(find(logits, 4, 0).fault.token == 2);
}

TEST_CASE("lists are found in a graph, again and again") {
  const std::int32_t vocab = 32000, n_rows = 15, k = 64;
  const device::device_array<float> numbers(static_cast<std::size_t>(n_rows * vocab));
  const device::device_array<token_id> tokens(n_rows * k);
  const device::device_array<float> log_probs(n_rows * k);
  const device::device_array<std::int32_t> counts(n_rows);
  const device::device_array<double> log_totals(n_rows);
  const device::device_array<device::fault> fault = to_device(std::vector<device::fault>(1));
  const device::top_tokens<float> top(vocab);
  cudaStream_t stream;
  device::require(cudaStreamCreate(&stream), "cudaStreamCreate");
  device::require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  top.of_logits({numbers.data(), n_rows, vocab}, 1,
                {tokens.data(), log_probs.data(), counts.data(), log_totals.data(), k}, fault.data(), {}, stream);
  cudaGraph_t graph;
  device::require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable;
  device::require(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  std::mt19937 random(5);
  std::normal_distribution<float> normal(0, 3);
  for (int round = 0; round < 3; ++round) {
    std::vector<float> logits(numbers.size());
    for (float& x : logits)
      x = normal(random);
    numbers.upload(logits, stream);
    device::require(cudaGraphLaunch(executable, stream), "cudaGraphLaunch");
    device::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    const found_lists found{to_host(tokens), to_host(log_probs), to_host(counts), to_host(log_totals),
                            to_host(fault)[0]};
    for (std::size_t r = 0; r < n_rows; ++r) {
      const auto first = logits.begin() + static_cast<std::ptrdiff_t>(r) * vocab;
      compare(found, r, std::vector<float>(first, first + vocab), k);
    }
  }
  device::require(cudaGraphExecDestroy(executable), "cudaGraphExecDestroy");
  device::require(cudaGraphDestroy(graph), "cudaGraphDestroy");
  device::require(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST_CASE("options of top tokens out of range are errors that name them") {
  CHECK(says(message_of<option_error>([] { device::top_tokens<float>(0); }), "vocabulary"));
  CHECK(says(message_of<option_error>([] { device::top_tokens<float>((1 << 20) + 1); }), "vocabulary"));
  const device::top_tokens<float> top(10);
  const auto run = [&](std::int32_t vocab, float temperature, std::int32_t k) {
    top.of_logits({nullptr, 1, vocab}, temperature, {.k = k}, nullptr, {}, nullptr);
  };
  CHECK(says(message_of<option_error>([&] { run(10, 1, 1025); }), "k"));
  CHECK(says(message_of<option_error>([&] { run(10, 0, 1); }), "temperature"));
  CHECK(says(message_of<option_error>([&] { run(11, 1, 1); }), "vocabulary"));
}
