// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_fp16.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"
#include "cuda/model/llama/host_llama.hpp"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/support.cuh"
#include "espalier/core/forward_batch.hpp"

//! Batches for backends on the device, and what the host's backend makes of them.
namespace llama_scenes {

using espalier::forward_batch;
using llama_driver::device_batch;
using llama_driver::device_kv;
using llama_driver::device_rows;
using llama_driver::row_type;
using llama_driver::rows_beyond;

//! What rounding to a type may do to numbers as large as these models': a few of its steps.
template <class NumberT>
constexpr double rounding = std::is_same_v<NumberT, float>    ? 1e-5
                            : std::is_same_v<NumberT, __half> ? 6e-3
                                                              : 4e-2;

template <class BackendT>
auto cache_for(const BackendT& backend, int n_sequences, int capacity, int page_size = 0) {
  using number = typename BackendT::weight_number;
  return device_kv<number>(backend.config().n_layers, backend.config().kv_size(), n_sequences, capacity, page_size);
}

//! A chain and a tree of two sequences in one batch, after prefixes of their own.
inline forward_batch two_sequences(std::mt19937& random, int vocab, int first_prefix, int second_prefix) {
  const auto chain = llama_driver::random_tokens(random, 5, vocab);
  const auto tree = llama_driver::random_tree(random, 11, vocab);
  forward_batch batch;
  batch.begin_sequence(1, first_prefix, 5);
  for (std::size_t i = 0; i < chain.size(); ++i) {
    const auto column = static_cast<std::int32_t>(i);
    batch.add_row(chain[i], first_prefix + column, column, i % 2 == 0).include_first(column);
  }
  batch.begin_sequence(0, second_prefix, 11);
  llama_driver::add_tree(batch, tree, second_prefix);
  return batch;
}

//! A tree of one sequence.
inline forward_batch one_tree(std::mt19937& random, int vocab, int prefix, int n_nodes) {
  forward_batch batch;
  batch.begin_sequence(0, prefix, n_nodes);
  llama_driver::add_tree(batch, llama_driver::random_tree(random, n_nodes, vocab), prefix);
  return batch;
}

//! Commits random text to a sequence of both caches.
template <class BackendT, class KVStoreT>
void write_text(host_llama& host, BackendT& device, KVStoreT& kv, std::mt19937& random, int sequence, int first,
                int n) {
  forward_batch batch;
  batch.begin_sequence(sequence, first, n);
  batch.add_chain(llama_driver::random_tokens(random, n, host.config().vocab_size), first, 0);
  host.forward(batch.view());
  host.commit_first(sequence, n);
  const device_batch uploaded(batch.view(), 3);
  CHECK(device.forward(kv, uploaded.view(), nullptr).n_rows == 0);
}

//! Rows of a pass's hidden states, on the host.
template <class BackendT>
std::vector<row_type> states_of(const BackendT& device, int layer, int n_rows) {
  const auto width = static_cast<std::ptrdiff_t>(device.config().hidden_size);
  const auto all = espalier_test::to_host(device.hidden(layer), static_cast<std::size_t>(n_rows * width));
  std::vector<row_type> states;
  for (int row = 0; row < n_rows; ++row)
    states.emplace_back(all.begin() + row * width, all.begin() + (row + 1) * width);
  return states;
}

//! Logits, hidden states and cache rows of two texts, one of which goes on as a tree.
template <class BackendT>
void compare_with_host(const std::string& folder, int page_size, unsigned seed, double tolerance) {
  using number = typename BackendT::weight_number;
  INFO(folder << ", pages of " << page_size << ", seed " << seed);
  std::mt19937 random(seed);
  host_llama host(folder, 2, 48);
  auto device = BackendT::load(folder, {.max_rows = 40, .hidden_layers = {1, 0}});
  REQUIRE(device.vocab_size() == host.config().vocab_size);
  auto kv = cache_for(device, 2, 48, page_size);
  write_text(host, device, kv, random, 0, 0, 13);
  write_text(host, device, kv, random, 1, 0, 4);
  const forward_batch batch = two_sequences(random, host.config().vocab_size, 4, 13);
  const auto expected = host.forward(batch.view());
  const device_batch uploaded(batch.view(), 2);
  const auto before = kv.contents();
  const auto found = device_rows(device.forward(kv, uploaded.view(), nullptr));
  // With 16 bits a row may choose another expert, and is another row then.
  const bool chooses = host.config().has_mixtures() && sizeof(number) == 2;
  const auto most = [&](std::size_t n) { return chooses ? n / 4 : 0; };
  CHECK(rows_beyond(tolerance, found, expected) <= most(expected.size()));
  for (const int layer : {0, 1}) {
    std::vector<row_type> states;
    for (int row = 0; row < 16; ++row)
      states.push_back(host.hidden(layer, row));
    INFO("hidden states of layer " << layer);
    CHECK(rows_beyond(tolerance, states_of(device, layer, 16), states) <= most(states.size()));
  }
  // The rows' slots were written, in each layer keys and values, and nothing else.
  const auto after = kv.contents();
  std::size_t written = 0;
  for (std::size_t i = 0; i < after.size(); ++i)
    written += std::memcmp(&before[i], &after[i], sizeof(number)) != 0 ? 1U : 0U;
  CHECK(written == 16U * 2U * static_cast<std::size_t>(host.config().kv_size() * host.config().n_layers));
}

}  // namespace llama_scenes
