// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/backend/on_host.cuh"

#include <cmath>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/support.cuh"
#include "espalier/backend/text.hpp"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/kv_store/token_kv.hpp"
#include "model/llama/batch_writer.hpp"
#include "raises.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::to_device;
using llama_driver::device_batch;
using llama_driver::device_rows;
using llama_driver::row_type;

namespace {

constexpr std::int32_t vocab = 7;

// Logits that tell which text they are of.
struct remembering_model {
  int* calls;
  int fail_at = -1;

  void operator()(std::span<const token_id> text, std::span<double> logits) const {
    if ((*calls)++ == fail_at) throw std::runtime_error("the model has lost its mind");
    unsigned sum = 17;
    for (const token_id token : text)
      sum = sum * 31 + static_cast<unsigned>(token);
    for (std::size_t i = 0; i < logits.size(); ++i)
      logits[i] = static_cast<double>((sum >> i) % 1000U) / 7.0;
  }
};

using text_model = text_backend<remembering_model>;
static_assert(gpu::KVStore<gpu::on_host_kv<token_kv>>);
static_assert(gpu::KVStore<gpu::on_host_kv<token_kv&>>);
static_assert(gpu::Backend<gpu::on_host<text_model>, gpu::on_host_kv<token_kv>>);
static_assert(gpu::Backend<gpu::on_host<text_model&>, gpu::on_host_kv<token_kv&>>);

std::vector<row_type> rows_of(const vocab_rows<double>& logits) {
  std::vector<row_type> rows;
  for (std::int32_t r = 0; r < logits.n_rows; ++r) {
    const double* row = logits.data + r * logits.vocab;
    rows.emplace_back();
    for (std::int32_t i = 0; i < logits.vocab; ++i)
      rows.back().push_back(static_cast<float>(row[i]));
  }
  return rows;
}

// A random tree in the order of its nodes after `prefix` rows of a sequence.
void write_tree(forward_batch& batch, const llama_driver::tree& tree, std::int32_t sequence, std::int32_t prefix) {
  batch.begin_sequence(sequence, prefix, static_cast<std::int32_t>(tree.tokens.size()));
  llama_driver::add_tree(batch, tree, prefix);
}

// What a round commits, on the device.
struct device_kept {
  device_kept(std::int32_t base, const std::vector<std::int32_t>& kept)
      : base_(to_device(std::vector<std::int32_t>{base})),
        n_(to_device(std::vector<std::int32_t>{static_cast<std::int32_t>(kept.size())})) {
    std::vector<std::int32_t> padded = kept;
    padded.resize(20, -7);
    kept_ = to_device(padded);
  }

  template <class KVStoreT>
  void commit(KVStoreT& kv, std::int32_t sequence, cudaStream_t stream = nullptr) const {
    kv.commit(gpu::text_batch::of({}, {}, 0, sequence), {base_.data(), kept_.data(), n_.data(), 20}, stream);
  }

  gpu::device_array<std::int32_t> base_, n_, kept_;
};

struct pair_of_worlds {
  int calls = 0, device_calls = 0;
  text_model host{vocab, {&calls}};
  text_model behind{vocab, {&device_calls}};
  token_kv host_kv{200, commit_mode::compact, 2}, kv_behind{200, commit_mode::compact, 2};
  gpu::on_host<text_model&> device{behind, {.max_rows = 40, .max_columns = 64}};
  gpu::on_host_kv<token_kv&> kv{kv_behind, 2};

  std::vector<row_type> forward_on_host(const forward_batch_view& batch) {
    for (const batch_sequence& s : batch.sequences)
      host_kv.append(s.sequence, s.row_end - s.row_begin);
    return rows_of(host.forward(host_kv, batch));
  }
};

std::vector<std::int32_t> random_path(std::mt19937& random, const llama_driver::tree& tree) {
  return tree.path_to(static_cast<int>(random() % tree.tokens.size()));
}

}  // namespace

TEST_CASE("Rounds over a model of the host give its logits and leave its cache") {
  std::mt19937 random(1);
  pair_of_worlds w;
  std::int32_t size[2] = {0, 0};
  for (int round = 0; round < 12; ++round) {
    const llama_driver::tree trees[2] = {llama_driver::random_tree(random, 1 + static_cast<int>(random() % 9), vocab),
                                         llama_driver::random_tree(random, 1 + static_cast<int>(random() % 15), vocab)};
    forward_batch batch;
    write_tree(batch, trees[1], 1, size[1]);
    write_tree(batch, trees[0], 0, size[0]);
    const auto expected = w.forward_on_host(batch.view());
    const device_batch uploaded(batch.view(), round % 3);
    REQUIRE(device_rows(w.device.forward(w.kv, uploaded.view(), nullptr)) == expected);
    for (const std::int32_t s : {0, 1}) {
      std::vector<std::int32_t> kept = random_path(random, trees[s]);
      if (round % 4 == 3 && s == 0) kept.clear();  // a fault was found: nothing is committed
      w.host_kv.commit(s, kept);
      device_kept(size[s], kept).commit(w.kv, s);
      size[s] += static_cast<std::int32_t>(kept.size());
      gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      REQUIRE(w.kv_behind.size(s) == size[s]);
    }
  }
  CHECK(w.device_calls == w.calls);
}

TEST_CASE("A prompt in chunks and a tree level by level need no commit in between") {
  std::mt19937 random(2);
  pair_of_worlds w;
  const auto tokens = llama_driver::random_tokens(random, 33, vocab);
  const auto on_device = to_device(tokens);
  gpu::prefill prefill;
  prefill.run(w.device, w.kv, 1, {on_device.data(), nullptr, 33}, 0, 20, nullptr);
  prefill.run(w.device, w.kv, 1, {on_device.data(), nullptr, 33}, 20, 33, nullptr);
  forward_batch chain;
  chain.begin_sequence(1, 0, 33);
  chain.add_chain(tokens, 0, 0);
  w.forward_on_host(chain.view());
  std::vector<std::int32_t> all(33);
  for (std::int32_t i = 0; i < 33; ++i)
    all[static_cast<std::size_t>(i)] = i;
  w.host_kv.commit(1, all);
  const llama_driver::tree tree{{5, 1, 1, 6, 4, 3}, {-1, 0, 0, 1, 1, 2}};
  forward_batch whole;
  write_tree(whole, tree, 1, 33);
  const auto expected = w.forward_on_host(whole.view());
  for (const auto& [first, last] : {std::pair(0, 1), std::pair(1, 3), std::pair(3, 6)}) {
    forward_batch level;
    level.begin_sequence(1, 33, 6);
    for (int u = first; u < last; ++u) {
      const auto path = tree.path_to(u);
      const mask_row mask =
          level.add_row(tree.tokens[static_cast<std::size_t>(u)], 32 + static_cast<std::int32_t>(path.size()), u, true);
      for (const int ancestor : path)
        mask.set(ancestor);
    }
    const device_batch uploaded(level.view(), 1);
    const auto rows = device_rows(w.device.forward(w.kv, uploaded.view(), nullptr));
    for (int u = first; u < last; ++u)
      CHECK(rows[static_cast<std::size_t>(u - first)] == expected[static_cast<std::size_t>(u)]);
  }
  // Another text that shares a beginning.
  prefill.run(w.device, w.kv, 1, {on_device.data(), nullptr, 33}, 9, 12, nullptr);
  gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  w.device.raise_failure();
  CHECK(w.kv_behind.size(1) == 9);
}

TEST_CASE("Outputs may be all rows, or none for some") {
  std::mt19937 random(3);
  pair_of_worlds w;
  forward_batch batch;
  write_tree(batch, llama_driver::random_tree(random, 6, vocab), 0, 0);
  const auto expected = w.forward_on_host(batch.view());
  const device_batch uploaded(batch.view(), 2);
  auto all = device_rows(w.device.forward(w.kv, uploaded.view(true), nullptr));
  REQUIRE(all.size() == 8);
  all.resize(6);
  CHECK(all == expected);
  const auto chosen = to_device(std::vector<std::int32_t>{4, -1, 1});
  gpu::forward_batch_view view = uploaded.view();
  view.outputs = chosen.data();
  view.n_outputs = 3;
  const auto three = device_rows(w.device.forward(w.kv, view, nullptr));
  CHECK(three[0] == expected[4]);
  CHECK(three[2] == expected[1]);
  CHECK(w.device.forward(w.kv, {}, nullptr).n_rows == 0);
}

TEST_CASE("A captured round runs on the host when it is replayed") {
  std::mt19937 random(4);
  pair_of_worlds w;
  const gpu::stream stream;
  const llama_driver::tree first = llama_driver::random_tree(random, 8, vocab);
  forward_batch batch;
  write_tree(batch, first, 0, 0);
  device_batch uploaded(batch.view(), 3);
  const device_kept kept(0, {0, 1});
  vocab_rows<float> logits;
  const gpu::graph graph(stream.get(), [&] {
    logits = w.device.forward(w.kv, uploaded.view(), stream.get());
    kept.commit(w.kv, 0, stream.get());
  });
  CHECK(w.device_calls == 0);
  for (int round = 0; round < 3; ++round) {
    const std::int32_t prefix = 2 * round;
    if (round > 0) {
      batch.clear();
      write_tree(batch, llama_driver::random_tree(random, 8, vocab), 0, prefix);
      uploaded.update(batch.view());
      kept.base_.upload(std::span<const std::int32_t>(&prefix, 1), nullptr);
      gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    const auto expected = w.forward_on_host(batch.view());
    w.host_kv.commit(0, std::vector<std::int32_t>{0, 1});
    graph.launch(stream.get());
    gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    REQUIRE(device_rows(logits) == expected);
    REQUIRE(w.kv_behind.size(0) == prefix + 2);
  }
}

TEST_CASE("What goes wrong on the host comes out when it is asked for, and logits are NaN") {
  std::mt19937 random(5);
  int calls = 0;
  gpu::on_host device(text_model(vocab, {&calls, 2}), {.max_rows = 8, .max_columns = 8});
  gpu::on_host_kv kv(token_kv(10));
  CHECK(kv.n_sequences() == 1);
  forward_batch batch;
  write_tree(batch, {{1, 2, 3}, {-1, 0, 0}}, 0, 0);
  const device_batch uploaded(batch.view());
  const auto rows = device_rows(device.forward(kv, uploaded.view(), nullptr));
  for (const row_type& row : rows)
    CHECK(std::isnan(row[0]));
  CHECK_NOTHROW(device.forward(kv, uploaded.view(), nullptr));
  CHECK_THROWS_WITH(device.raise_failure(), "the model has lost its mind");
  CHECK(device_rows(device.forward(kv, uploaded.view(), nullptr)).size() == 3);
  CHECK_NOTHROW(device.raise_failure());

  const auto failure = [&](const forward_batch& wrong) {
    device.forward(kv, device_batch(wrong.view()).view(), nullptr);
    gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return message_of<input_error>([&] { device.raise_failure(); });
  };
  forward_batch beyond, late, wide;
  write_tree(beyond, {{1, 2, 3}, {-1, 0, 1}}, 0, 4);
  CHECK(failure(beyond) == "a batch goes on after 4 rows of sequence 0, but its cache on the host has 3.");
  write_tree(late, {{1, 2, 3, 4, 5, 6, 1, 2}, {-1, 0, 1, 2, 3, 4, 5, 6}}, 0, 3);
  CHECK(failure(late) == "a batch writes slot 10 of sequence 0, but its cache on the host ends at 9.");
  wide.begin_sequence(0, 0, 40);
  wide.add_row(1, 0, 0, true).set(39);
  CHECK(failure(wide) ==
        "row 0 of a batch sees scratch slots beyond 8, for which the copies were built (option max_columns).");

  device_kept(5, {0}).commit(kv, 0);
  gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  CHECK(message_of<input_error>([&] { kv.ensure(0, 1, nullptr); }) ==
        "rows after 5 of sequence 0 are committed, but its cache on the host has 3.");
  CHECK(message_of<input_error>([&] { kv.ensure(0, 11, nullptr); }) ==
        "sequence 0 needs 11 slots, but the cache has 10.");
  CHECK(message_of<input_error>([&] { kv.ensure(1, 1, nullptr); }) == "sequence 1 does not exist: the store holds 1.");
  CHECK(message_of<option_error>([] { gpu::on_host_kv truncating(token_kv(10, commit_mode::truncate)); }) ==
        "the cache on the host only truncates, but rounds on the device compact: build it with commit_mode::compact.");
  gpu::forward_batch_view large;
  large.n_rows = 9;
  CHECK(message_of<input_error>([&] { device.forward(kv, large, nullptr); }) ==
        "a batch has 9 rows, but the backend was built for at most 8 (option max_rows).");
  large = {.n_rows = 3, .n_sequences = 10};
  CHECK(message_of<input_error>([&] { device.forward(kv, large, nullptr); }) ==
        "a batch has 10 sequences, but the backend was built for at most 8 (option max_rows).");
  large = {.n_rows = 8, .n_sequences = 8, .n_outputs = 11};
  CHECK(message_of<input_error>([&] { device.forward(kv, large, nullptr); }) ==
        "a batch has 11 outputs, but the backend was built for at most 8 (option max_rows).");
}
