// SPDX-License-Identifier: BSL-1.0
// The stores of the device: the laws of the host's, and commits of paths of every kind.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <random>
#include <span>
#include <vector>

#include "catch.hpp"
#include "cuda/kv_store/host_driven.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/paged.cuh"
#include "espalier/testing/kv_store_laws.hpp"
#include "raises.hpp"

namespace device = espalier::cuda;
using espalier_test::host_driven;
using espalier_test::to_device;
using espalier_test::to_host;

static_assert(device::KVStore<device::contiguous_kv<float>>);
static_assert(device::KVStore<device::paged_kv<__half>>);
static_assert(device::SharingKVStore<device::paged_kv<float>>);
static_assert(!device::SharingKVStore<device::contiguous_kv<float>>);
static_assert(espalier::SharingKVStore<host_driven<device::paged_kv<float>>>);
static_assert(!espalier::PrefixKVStore<host_driven<device::contiguous_kv<float>>>);

namespace {

template <class StoreT>
void check_laws(StoreT&& store) {
  host_driven kv(store);
  espalier::testing::check_kv_store(kv, store.n_sequences(), espalier_test::row_access());
}

template <class NumberT>
void check_laws_of(std::int32_t row_size) {
  INFO("rows of " << row_size << " numbers of " << sizeof(NumberT) << " bytes");
  check_laws(device::contiguous_kv<NumberT>(2, row_size, 2, 19));
  check_laws(device::paged_kv<NumberT>(2, row_size, 2, 19, 4, 10));
}

// Numbers the slots from 0 to n - 1, commits `kept` after `base` rows, and says whether what should be there is.
template <class StoreT>
bool commits(StoreT& store, std::int32_t base, const std::vector<std::int32_t>& kept, std::int32_t n) {
  host_driven kv(store);
  for (std::int32_t s = 0; s < store.n_sequences(); ++s) {
    store.ensure(s, n, nullptr);
    for (std::int32_t i = 0; i < n; ++i)
      kv.write(s, i, 5000 * s + i);
  }
  const auto n_kept = static_cast<std::int32_t>(kept.size());
  std::vector<std::int32_t> words{base, n_kept};
  words.insert(words.end(), kept.begin(), kept.end());
  words.push_back(0x5A5A5A);  // beyond what is kept
  const auto on_device = to_device(words);
  store.commit(device::text_batch::of({}, {}, 0, 1),
               {on_device.data(), on_device.data() + 2, on_device.data() + 1, n_kept + 1}, nullptr);
  for (std::int32_t s = 0; s < store.n_sequences(); ++s) {
    std::vector<std::int32_t> expected(static_cast<std::size_t>(n));
    std::iota(expected.begin(), expected.end(), 5000 * s);
    for (std::int32_t i = 0; s == 1 && i < n_kept; ++i)
      expected[static_cast<std::size_t>(base + i)] = 5000 + base + kept[static_cast<std::size_t>(i)];
    if (kv.read(s, n) != expected) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("The stores of the device keep the laws: float, half, bfloat16, rows of whole and of odd pieces") {
  check_laws_of<float>(8);
  check_laws_of<float>(6);
  check_laws_of<float>(5);
  check_laws_of<__half>(16);
  check_laws_of<__half>(7);
  check_laws_of<__nv_bfloat16>(24);
  check_laws_of<__nv_bfloat16>(12);
  check_laws_of<__nv_bfloat16>(3);
}

TEST_CASE("Pages are shared by the laws, whatever their size and however many there are") {
  for (const std::int32_t page_size : {1, 7, 16, 50}) {
    for (const std::int32_t spare : {1, 30}) {
      INFO("pages of " << page_size << " rows, " << spare << " more than for one sequence");
      device::paged_kv<__half> store(2, 5, 3, 19, page_size, (19 - 1) / page_size + 1 + spare);
      host_driven kv(store);
      espalier::testing::check_sharing_kv_store(kv, 3, espalier_test::row_access());
    }
  }
}

TEST_CASE("Paths of every kind are moved together in place, and no other row changes") {
  device::contiguous_kv<__half> contiguous(3, 72, 3, 1100);
  device::paged_kv<__half> paged(3, 72, 3, 1100, 16, 3 * 69);
  std::vector<std::vector<std::int32_t>> paths{{}, {0}, {1}, {0, 1, 2}, {1037}, {0, 1037}};
  std::vector<std::int32_t> shifted(1037), all(1038), odd;
  std::iota(shifted.begin(), shifted.end(), 1);
  std::iota(all.begin(), all.end(), 0);
  for (std::int32_t i = 1; i < 1038; i += 2)
    odd.push_back(i);
  paths.push_back(shifted);
  paths.push_back(all);
  paths.push_back(odd);
  std::mt19937 random(1);
  for (int n = 0; n < 6; ++n) {
    paths.emplace_back();
    const auto share = 2 + random() % 12;
    for (std::int32_t i = 0; i < 1038; ++i) {
      if (random() % share == 0) paths.back().push_back(i);
    }
  }
  for (const auto& path : paths) {
    INFO(path.size() << " rows kept");
    CHECK(commits(contiguous, 50, path, 1090));
    CHECK(commits(paged, 50, path, 1090));
  }
  CHECK(commits(contiguous, 0, shifted, 1090));
}

TEST_CASE("A cache of many layers and wide rows is moved whole") {
  device::contiguous_kv<float> contiguous(9, 260, 2, 40);
  device::paged_kv<__nv_bfloat16> paged(9, 264, 2, 40, 3, 28);
  for (const std::vector<std::int32_t>& path :
       {std::vector<std::int32_t>{0, 2, 3, 9, 20, 21, 22, 23, 24, 30, 31}, {7}}) {
    CHECK(commits(contiguous, 4, path, 40));
    CHECK(commits(paged, 4, path, 40));
  }
}

TEST_CASE("A captured commit replays with the path of the time") {
  device::paged_kv<float> store(2, 4, 1, 30, 4, 8);
  host_driven kv(store);
  store.ensure(0, 30, nullptr);
  const device::device_array<std::int32_t> words(8);
  cudaStream_t stream;
  device::require(cudaStreamCreate(&stream), "cudaStreamCreate");
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  device::require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  store.commit({}, {words.data(), words.data() + 2, words.data() + 1, 6}, stream);
  device::require(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
  device::require(cudaGraphInstantiate(&exec, graph, 0), "cudaGraphInstantiate");
  const std::vector<std::vector<std::int32_t>> rounds{
      {10, 3, 0, 4, 9}, {13, 6, 1, 2, 3, 5, 6, 7}, {19, 0}, {19, 1, 10}};
  std::vector<std::int32_t> expected(30);
  std::iota(expected.begin(), expected.end(), 100);
  for (std::int32_t i = 0; i < 30; ++i)
    kv.write(0, i, 100 + i);
  for (std::vector<std::int32_t> round : rounds) {
    const std::vector<std::int32_t> before = expected;
    for (std::int32_t i = 0; i < round[1]; ++i)
      expected[static_cast<std::size_t>(round[0] + i)] =
          before[static_cast<std::size_t>(round[0] + round[static_cast<std::size_t>(2 + i)])];
    round.resize(8, -77);
    words.upload(round, stream);
    device::require(cudaGraphLaunch(exec, stream), "cudaGraphLaunch");
    device::require(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
    CHECK(kv.read(0, 30) == expected);
  }
  device::require(cudaGraphExecDestroy(exec), "cudaGraphExecDestroy");
  device::require(cudaGraphDestroy(graph), "cudaGraphDestroy");
  device::require(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

TEST_CASE("Pages go to whoever grows, come back, and are handed out again") {
  device::paged_kv<float> store(1, 4, 3, 1000, 2, 200);
  host_driven kv(store);
  const auto fill = [&](std::int32_t s, std::int32_t from, std::int32_t to, std::int32_t number) {
    store.ensure(s, to, nullptr);
    for (std::int32_t i = from; i < to; ++i)
      kv.write(s, i, number + i);
  };
  const auto is_filled = [&](std::int32_t s, std::int32_t n, std::int32_t number) {
    std::vector<std::int32_t> expected(static_cast<std::size_t>(n));
    std::iota(expected.begin(), expected.end(), number);
    return kv.read(s, n) == expected;
  };
  fill(0, 0, 3, 1000);
  fill(1, 0, 201, 2000);  // more pages than one launch can enter
  fill(0, 3, 150, 1000);
  CHECK(store.n_free() == 200 - 75 - 101);
  CHECK(is_filled(0, 150, 1000));
  CHECK(is_filled(1, 201, 2000));

  const std::string message = message_of<espalier::input_error>([&] { store.ensure(2, 49, nullptr); });
  CHECK(says(message, "sequence 2 needs 25 more pages", "only 24 of 200 are free"));
  CHECK(store.n_free() == 24);
  fill(2, 0, 48, 3000);
  CHECK(store.n_free() == 0);
  CHECK(message_of<espalier::input_error>([&] { store.ensure(1, 203, nullptr); }) != "");
  store.ensure(1, 202, nullptr);  // its last page has room
  CHECK(is_filled(0, 150, 1000));
  CHECK(is_filled(1, 201, 2000));
  CHECK(is_filled(2, 48, 3000));

  store.release(0);
  store.truncate(1, 31);
  CHECK(store.n_free() == 75 + 85);
  fill(2, 48, 300, 3000);
  CHECK(is_filled(1, 31, 2000));
  CHECK(is_filled(2, 300, 3000));
  fill(0, 0, 9, 4000);
  CHECK(is_filled(0, 9, 4000));
  CHECK(is_filled(2, 300, 3000));
}

TEST_CASE("Rows that the device alone knows stay where their page is shared") {
  const std::vector<espalier::token_id> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
  const auto known = [&](std::size_t n) { return std::span(tokens).first(n); };
  const auto numbers = [](std::int32_t first, std::int32_t n) {
    std::vector<std::int32_t> all(static_cast<std::size_t>(n));
    std::iota(all.begin(), all.end(), first);
    return all;
  };
  for (const bool forked_first : {false, true}) {
    INFO("the " << (forked_first ? "fork" : "original") << " is written first");
    device::paged_kv<float> store(2, 5, 2, 40, 4, 20);
    host_driven kv(store);
    const auto fill = [&](std::int32_t s, std::int32_t from, std::int32_t to, std::int32_t number) {
      store.ensure(s, to, nullptr);
      for (std::int32_t i = from; i < to; ++i)
        kv.write(s, i, number + i);
    };
    fill(0, 0, 10, 100);
    store.remember(0, 0, known(5));  // five more are on their way
    store.fork(0, 1, nullptr);
    CHECK(store.prefix(1).size() == 5);
    CHECK(store.n_free() == 17);
    if (forked_first) fill(1, 5, 7, 200);
    store.ensure(0, 11, nullptr);
    CHECK(kv.read(0, 10) == numbers(100, 10));
    fill(0, 10, 11, 100);
    if (!forked_first) fill(1, 5, 7, 200);
    CHECK(kv.read(0, 11) == numbers(100, 11));
    CHECK(kv.read(1, 5) == numbers(100, 5));
    CHECK(kv.read(1, 7).back() == 206);
    CHECK(store.n_free() == 16);

    // What the host learns of is found, and what it gives up.
    store.remember(0, 5, std::span(tokens).subspan(5));
    CHECK(store.adopt(1, tokens, nullptr) == 8);
    CHECK(kv.read(1, 8) == numbers(100, 8));
    store.release(0);
    CHECK(store.prefix(0).empty());
    CHECK(store.adopt(1, tokens, nullptr) == 10);
    CHECK(kv.read(1, 10) == numbers(100, 10));
    // A row that is written anew is the sequence's alone.
    CHECK(store.adopt(0, tokens, nullptr) == 10);
    store.truncate(0, 6);
    fill(0, 6, 9, 300);
    CHECK(kv.read(1, 10) == numbers(100, 10));
    CHECK(kv.read(0, 6) == numbers(100, 6));
    CHECK(kv.read(0, 9).back() == 308);
    store.truncate(0, -1);
    CHECK(store.prefix(0).empty());
    store.release(1);
    CHECK(store.n_free() == 20);
  }
}

TEST_CASE("A long beginning is adopted, forked and evicted whole") {
  device::paged_kv<float> store(1, 4, 3, 400, 2, 420);
  host_driven kv(store);
  std::vector<espalier::token_id> tokens(399);
  std::iota(tokens.begin(), tokens.end(), 7);
  store.ensure(0, 399, nullptr);
  for (std::int32_t i = 0; i < 399; ++i)
    kv.write(0, i, 10 + i);
  store.remember(0, 0, tokens);
  std::vector<std::int32_t> expected(399);
  std::iota(expected.begin(), expected.end(), 10);
  store.fork(0, 1, nullptr);
  CHECK(store.adopt(2, tokens, nullptr) == 398);
  CHECK(store.n_free() == 220);
  CHECK(kv.read(1, 399) == expected);
  expected.pop_back();
  CHECK(kv.read(2, 398) == expected);
  for (const std::int32_t s : {0, 1, 2})
    store.release(s);
  CHECK(store.n_free() == 420);
  store.ensure(0, 400, nullptr);
  store.ensure(1, 400, nullptr);
  CHECK(store.n_free() == 20);
  const std::int32_t left = store.adopt(2, tokens, nullptr);
  CHECK(left == 40);  // 20 pages, those at the beginning
  expected.resize(40);
  CHECK(kv.read(2, 40) == expected);
}

TEST_CASE("Sizes out of range and sequences that are not there are refused", "[refused]") {
  using device::contiguous_kv, device::paged_kv;
  CHECK_THROWS_AS(contiguous_kv<float>(0, 1, 1, 1), espalier::option_error);
  CHECK_THROWS_AS(contiguous_kv<float>(1, 0, 1, 1), espalier::option_error);
  CHECK_THROWS_AS(contiguous_kv<float>(1, 1, 0, 1), espalier::option_error);
  CHECK_THROWS_AS(contiguous_kv<float>(1, 1, 1, 0), espalier::option_error);
  CHECK_THROWS_AS(contiguous_kv<float>(1 << 20, 1 << 24, 1 << 20, 1 << 30), espalier::option_error);
  CHECK_THROWS_AS(contiguous_kv<float>(1 << 10, 1 << 20, 1, 1 << 16), espalier::cuda_error);
  CHECK_THROWS_AS(paged_kv<float>(1, 1, 1, 1, 0, 1), espalier::option_error);
  CHECK_THROWS_AS(paged_kv<float>(1, 1, 1, 1, 1, 0), espalier::option_error);
  CHECK_THROWS_AS(paged_kv<float>(1, 1, 1, 1, 0), espalier::option_error);
  CHECK(paged_kv<float>(1, 1, 3, 21, 10).n_free() == 9);
  CHECK(paged_kv<float>(1, 1, 3, 21, 10, 2).capacity() == 20);
  contiguous_kv<float> kv(1, 1, 2, 10);
  const auto message = [&](std::int32_t sequence, std::int32_t n) {
    return message_of<espalier::input_error>([&] { kv.ensure(sequence, n, nullptr); });
  };
  CHECK(message(0, 10).empty());
  CHECK(says(message(1, 11), "sequence 1 cannot have 11 slots", "capacity is 10"));
  CHECK(says(message(2, 1), "sequence 2 does not exist", "holds 2"));
}
