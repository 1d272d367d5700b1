// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/backend/llama.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "backend/model_writer.hpp"
#include "catch.hpp"
#include "cuda/backend/llama_driver.cuh"
#include "cuda/support.cuh"
#include "espalier/backend/llama.hpp"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/core/graph.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "raises.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::to_device;
using espalier_test::to_host;
using llama_driver::device_batch;
using llama_driver::device_kv;
using llama_driver::device_rows;
using llama_driver::difference;
using llama_driver::plain_attention;
using llama_driver::row_type;

namespace {

template <class NumberT, class LogitT = float>
using plain_llama = gpu::llama_backend<NumberT, LogitT, plain_attention<NumberT>>;

static_assert(gpu::Backend<plain_llama<float>, device_kv<float>>);
static_assert(gpu::Backend<plain_llama<__nv_bfloat16>, device_kv<__nv_bfloat16>>);
static_assert(!gpu::Backend<plain_llama<__nv_bfloat16>, device_kv<float>>);

const std::vector<std::string> folders = {"llama",           "llama_tied", "llama_f16", "llama_bf16",
                                          "llama_int8_rows", "qwen3",      "gpt_neox",  "gpt_neox_sequential"};

std::string path_of(const std::string& folder) {
  return std::string(ESPALIER_TEST_DATA) + "/golden/" + folder;
}

// What rounding to a type may do to numbers as large as these models': a few of its steps.
template <class NumberT>
constexpr double rounding = std::is_same_v<NumberT, float>    ? 2e-5
                            : std::is_same_v<NumberT, __half> ? 6e-3
                                                              : 4e-2;

template <class BackendT>
auto device_cache(const BackendT& backend, int n_sequences, int capacity, int page_size) {
  using number = typename BackendT::weight_number;
  return device_kv<number>(backend.config().n_layers, backend.config().kv_size(), n_sequences, capacity, page_size);
}

// A chain and a tree of two sequences in one batch, after prefixes of their own; every second row wants logits.
void two_sequences(forward_batch& batch, std::mt19937& random, int vocab, int first_prefix, int second_prefix) {
  const auto chain = llama_driver::random_tokens(random, 5, vocab);
  const auto tree = llama_driver::random_tree(random, 11, vocab);
  batch.clear();
  batch.begin_sequence(1, first_prefix, 5);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const auto column = static_cast<std::int32_t>(i);
    batch.add_row(chain[i], first_prefix + column, column, i % 2 == 0).include_first(column);
  }
  batch.begin_sequence(0, second_prefix, 11);
  llama_driver::add_tree(batch, tree, second_prefix);
}

// Puts random text before the batches into both caches.
template <class BackendT, class KVStoreT>
void fill_caches(llama_backend& host, contiguous_kv& host_kv, BackendT& device, KVStoreT& kv, std::mt19937& random,
                 int sequence, int n) {
  const auto text = llama_driver::random_tokens(random, n, host.vocab_size());
  forward_batch batch;
  host_kv.append(sequence, n);
  batch.begin_sequence(sequence, 0, n);
  batch.add_chain(text, 0, false);
  host.forward(host_kv, batch.view());
  llama_driver::commit_first(host_kv, sequence, n);
  const device_batch uploaded(batch.view(), 3);
  device.forward(kv, uploaded.view(), nullptr);
}

template <class NumberT, class LogitT = float>
void compare_with_host(const std::string& folder, int page_size, unsigned seed) {
  INFO(folder << ", pages of " << page_size << ", seed " << seed);
  std::mt19937 random(seed);
  auto host = llama_backend::load(path_of(folder), {.threads = 1, .hidden_layers = {0, 1}});
  auto device = plain_llama<NumberT, LogitT>::load(path_of(folder), {.max_rows = 40, .hidden_layers = {1, 0}});
  auto host_kv = llama_driver::cache_for(host, 48, 2);
  auto kv = device_cache(device, 2, 48, page_size);
  fill_caches(host, host_kv, device, kv, random, 0, 13);
  fill_caches(host, host_kv, device, kv, random, 1, 4);
  forward_batch batch;
  two_sequences(batch, random, host.vocab_size(), 4, 13);
  host_kv.append(1, 5), host_kv.append(0, 11);
  const auto expected = llama_driver::rows_of(host.forward(host_kv, batch.view()));
  const device_batch uploaded(batch.view(), 2);
  const auto before = kv.contents();
  const auto found = device_rows(device.forward(kv, uploaded.view(), nullptr));
  CHECK(difference(found, expected) < rounding<NumberT>);
  for (const int layer : {0, 1}) {
    std::vector<row_type> states, expected_states;
    const auto width = static_cast<std::size_t>(host.config().hidden_size);
    const auto all = to_host(device.hidden(layer), 16 * width);
    for (int row = 0; row < 16; ++row) {
      const auto from = all.begin() + row * static_cast<std::ptrdiff_t>(width);
      states.emplace_back(from, from + static_cast<std::ptrdiff_t>(width));
      expected_states.emplace_back(host.hidden(layer, row).begin(), host.hidden(layer, row).end());
    }
    INFO("hidden states of layer " << layer);
    CHECK(difference(states, expected_states) < rounding<NumberT>);
  }
  // Padding wrote no key: as many numbers changed as the rows have.
  const auto after = kv.contents();
  std::size_t written = 0;
  for (std::size_t i = 0; i < after.size(); ++i)
    written += std::memcmp(&before[i], &after[i], sizeof after[i]) != 0 ? 1U : 0U;
  const std::size_t row_numbers = 2U * static_cast<std::size_t>(host.config().kv_size() * host.config().n_layers);
  CHECK(written <= 16 * row_numbers);
  CHECK(written > 15 * row_numbers);
}

}  // namespace

TEMPLATE_TEST_CASE("Logits, hidden states and cache rows of every family are the host's", "", float, __half,
                   __nv_bfloat16) {
  unsigned seed = 1;
  for (const std::string& folder : folders) {
    compare_with_host<TestType>(folder, 0, seed++);
    compare_with_host<TestType>(folder, seed % 2 == 0 ? 16 : 4, seed);
  }
}
