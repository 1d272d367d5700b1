// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/model/llama/llama_backend.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "catch.hpp"
#include "cuda/model/llama/host_llama.hpp"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/model/llama/llama_scenes.cuh"
#include "cuda/support.cuh"
#include "espalier/cuda/concepts/backend.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "raises.hpp"

#if __has_include("emulator/api.hpp")
#include "emulator/api.hpp"
#define ESPALIER_TEST_COUNTS_CALLS
#endif

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
using llama_scenes::cache_for;
using llama_scenes::compare_with_host;
using llama_scenes::one_tree;
using llama_scenes::rounding;
using llama_scenes::states_of;
using llama_scenes::write_text;

namespace {

template <class NumberT, class LogitT = float>
using plain_llama = gpu::llama_backend<NumberT, LogitT, plain_attention<NumberT>>;

static_assert(gpu::Backend<plain_llama<float>, device_kv<float>>);
static_assert(gpu::Backend<gpu::llama_backend<__nv_bfloat16>, device_kv<__nv_bfloat16>>);
static_assert(gpu::Backend<gpu::llama_backend<__half, __half>, device_kv<__half>>);
static_assert(!gpu::Backend<gpu::llama_backend<__nv_bfloat16>, device_kv<float>>);

const std::vector<std::string> folders = {"llama",
                                          "llama_tied",
                                          "llama_f16",
                                          "llama_bf16",
                                          "llama_int8_rows",
                                          "llama3",
                                          "qwen2",
                                          "qwen3",
                                          "gpt_neox",
                                          "gpt_neox_sequential",
                                          "llama_f16/model.gguf",
                                          "mistral",
                                          "gemma",
                                          "gemma2",
                                          "gemma3",
                                          "phi3",
                                          "phi4_mini",
                                          "olmo2",
                                          "olmo3",
                                          "granite",
                                          "smollm3",
                                          "glm4",
                                          "glm4/model.gguf",
                                          "mixtral",
                                          "mixtral/model.gguf",
                                          "qwen3_moe",
                                          "qwen3_moe_plain",
                                          "gpt_oss",
                                          "gpt_oss/model.gguf",
                                          "gpt_oss_mxfp4"};

std::string path_of(const std::string& folder) {
  return std::string(ESPALIER_TEST_DATA) + "/golden/" + folder;
}

std::string temporary(const std::string& name) {
  return (std::filesystem::temp_directory_path() / ("espalier_cuda_llama_" + name)).string();
}

}  // namespace

TEMPLATE_TEST_CASE("Logits, hidden states and cache rows of every family are the host's", "", float, __half,
                   __nv_bfloat16) {
  unsigned seed = 1;
  for (const std::string& folder : folders) {
    compare_with_host<plain_llama<TestType>>(path_of(folder), 0, seed++, rounding<TestType>);
    compare_with_host<plain_llama<TestType>>(path_of(folder), seed % 2 == 0 ? 16 : 4, seed, rounding<TestType>);
  }
}

TEMPLATE_TEST_CASE("So they are with the library's attention", "", float, __half, __nv_bfloat16) {
  for (const std::string folder : {"llama", "qwen3", "gpt_neox", "mistral", "gemma2", "gemma3", "gpt_oss"})
    compare_with_host<gpu::llama_backend<TestType>>(path_of(folder), 16, 30, rounding<TestType>);
  // A window may be shorter than the tree is deep, begin in the prefix, or be longer than all there is.
  for (const auto& [head_dim, window] : {std::pair(64, 0), std::pair(128, 0), std::pair(80, 0), std::pair(64, 3),
                                         std::pair(128, 9), std::pair(80, 9), std::pair(64, 200)}) {
    INFO("window of " << window);
    const std::string folder = temporary("wide");
    model_config wide = wide_llama(head_dim);
    wide.window = window;
    write_random_llama(folder, wide, 11);
    compare_with_host<gpu::llama_backend<TestType>>(folder, 16, 31, rounding<TestType>);
    std::filesystem::remove_all(folder);
  }
}

TEST_CASE("Logits may have the type of the weights") {
  std::mt19937 random(3);
  auto wide = plain_llama<__nv_bfloat16>::load(path_of("llama"));
  auto narrow = plain_llama<__nv_bfloat16, __nv_bfloat16>::load(path_of("llama"));
  auto kv = cache_for(wide, 1, 16);
  const device_batch batch(one_tree(random, 72, 0, 7).view());
  auto expected = device_rows(wide.forward(kv, batch.view(), nullptr));
  for (row_type& row : expected) {
    for (float& logit : row)
      logit = static_cast<float>(__nv_bfloat16(logit));
  }
  CHECK(device_rows(narrow.forward(kv, batch.view(), nullptr)) == expected);
}

TEST_CASE("With tokens of the head's own, logits are those of these tokens") {
  for (const std::string folder : {"llama", "llama_tied", "llama_int8_rows", "gemma2"}) {
    INFO(folder);
    const std::vector<token_id> tokens{2, 3, 17, 39};
    auto all = plain_llama<float>::load(path_of(folder));
    auto few = plain_llama<float>::load(path_of(folder), {.head_tokens = tokens});
    CHECK(all.tokens() == nullptr);
    CHECK(all.columns() == all.vocab_size());
    CHECK(few.columns() == 4);
    CHECK(few.vocab_size() == all.vocab_size());
    CHECK(espalier_test::to_host(few.tokens(), 4) == tokens);
    auto kv = cache_for(all, 1, 16), few_kv = cache_for(few, 1, 16);
    std::mt19937 random(6);
    const device_batch batch(one_tree(random, all.vocab_size(), 0, 7).view());
    const auto expected = device_rows(all.forward(kv, batch.view(), nullptr));
    const auto rows = device_rows(few.forward(few_kv, batch.view(), nullptr));
    REQUIRE(rows.size() == expected.size());
    for (std::size_t r = 0; r < rows.size(); ++r) {
      REQUIRE(rows[r].size() == tokens.size());
      for (std::size_t i = 0; i < tokens.size(); ++i)
        CHECK(rows[r][i] == Approx(expected[r][static_cast<std::size_t>(tokens[i])]).margin(1e-5));
    }
  }
  CHECK_THROWS_WITH(plain_llama<float>::load(path_of("llama"), {.head_tokens = {3, 2}}),
                    Catch::Matchers::StartsWith("option head_tokens has token 2 at place 1: tokens must ascend"));
}

TEST_CASE("Without a list of outputs every row has logits, and -1 in it asks for none") {
  std::mt19937 random(4);
  auto backend = plain_llama<float>::load(path_of("qwen3"));
  auto kv = cache_for(backend, 1, 16);
  const device_batch batch(one_tree(random, 72, 0, 7).view(), 2);
  const auto all = device_rows(backend.forward(kv, batch.view(true), nullptr));
  REQUIRE(all.size() == 9);
  const auto listed = device_rows(backend.forward(kv, batch.view(), nullptr));
  REQUIRE(listed.size() == 7);
  CHECK(std::equal(listed.begin(), listed.end(), all.begin()));
  const auto chosen = to_device(std::vector<std::int32_t>{5, -1, 2});
  gpu::forward_batch_view view = batch.view();
  view.outputs = chosen.data();
  view.n_outputs = 3;
  const auto three = device_rows(backend.forward(kv, view, nullptr));
  CHECK(three[0] == all[5]);
  CHECK(three[2] == all[2]);
  CHECK(backend.forward(kv, gpu::forward_batch_view{}, nullptr).n_rows == 0);
}

TEST_CASE("A row without a slot leaves the cache alone") {
  std::mt19937 random(9);
  auto backend = plain_llama<float>::load(path_of("llama"));
  auto kv = cache_for(backend, 2, 16);
  forward_batch tree;
  tree.begin_sequence(1, 0, 6);
  llama_driver::add_tree(tree, llama_driver::random_tree(random, 6, 72), 0);
  const device_batch batch(tree.view());
  gpu::forward_batch_view view = batch.view();
  const auto slots = to_device(std::vector<std::int32_t>{0, 1, -1, 3, 4, 5});
  view.slots = slots.data();
  backend.forward(kv, view, nullptr);
  const auto contents = kv.contents();
  const auto written = std::count_if(contents.begin(), contents.end(), [](float x) { return !std::isnan(x); });
  CHECK(written < 5 * 2 * 2 * backend.config().kv_size() + 1);
  CHECK(written >= 3 * 2 * 2 * backend.config().kv_size());
}

TEST_CASE("A row's bits depend neither on padding nor, with one algorithm, on the number of rows") {
  std::mt19937 random(5);
  for (const bool one_algorithm : {false, true}) {
    auto backend =
        plain_llama<__nv_bfloat16>::load(path_of("llama"), {.max_rows = 40, .batch_invariant = one_algorithm});
    auto kv = cache_for(backend, 1, 48), alone_kv = cache_for(backend, 1, 48);
    const forward_batch tree = one_tree(random, 72, 0, 9);
    const auto expected = device_rows(backend.forward(kv, device_batch(tree.view()).view(), nullptr));
    CHECK(device_rows(backend.forward(kv, device_batch(tree.view()).view(), nullptr)) == expected);
    const device_batch padded(tree.view(), one_algorithm ? 24 : 0);
    CHECK(device_rows(backend.forward(kv, padded.view(), nullptr)) == expected);
    if (!one_algorithm) continue;
    forward_batch root;
    root.begin_sequence(0, 0, 1);
    root.add_row(tree.view().tokens[0], 0, 0, true);
    CHECK(device_rows(backend.forward(alone_kv, device_batch(root.view()).view(), nullptr))[0] == expected[0]);
  }
}

TEMPLATE_TEST_CASE("With batch_invariant a tree's rows are those of plain decoding, bit for bit", "", float, __half,
                   __nv_bfloat16) {
  for (const auto& [head_dim, window] :
       {std::pair(64, 0), std::pair(128, 0), std::pair(80, 0), std::pair(64, 21), std::pair(80, 21)}) {
    const std::string folder = temporary("invariant");
    model_config wide = wide_llama(head_dim);
    wide.window = window;
    write_random_llama(folder, wide, 12);
    auto backend = gpu::llama_backend<TestType>::load(folder, {.max_rows = 60, .batch_invariant = true});
    const int vocab = backend.config().vocab_size;
    std::mt19937 random(10);
    const auto text = llama_driver::random_tokens(random, 54, vocab);
    const auto tree = llama_driver::random_tree(random, 25, vocab);
    // The text at once, and then the tree.
    auto kv = cache_for(backend, 1, 100), plain_kv = cache_for(backend, 1, 100);
    forward_batch chain, nodes;
    chain.begin_sequence(0, 0, 54);
    chain.add_chain(text, 0, 0);
    backend.forward(kv, device_batch(chain.view(), 3).view(), nullptr);
    nodes.begin_sequence(0, 54, 25);
    llama_driver::add_tree(nodes, tree, 54);
    const auto found = device_rows(backend.forward(kv, device_batch(nodes.view(), 8).view(), nullptr));
    // Token by token.
    const auto plain = [&](token_id token, int position) {
      forward_batch one;
      one.begin_sequence(0, position, 1);
      one.add_row(token, position, 0, true).include_first(0);
      return device_rows(backend.forward(plain_kv, device_batch(one.view()).view(), nullptr))[0];
    };
    for (int i = 0; i < 54; ++i)
      plain(text[static_cast<std::size_t>(i)], i);
    int different = 0;
    for (int node = 0; node < 25; ++node) {
      row_type row;
      int position = 54;
      for (const token_id token : tree.tokens_to(node))
        row = plain(token, position++);
      different += row == found[static_cast<std::size_t>(node)] ? 0 : 1;
    }
    INFO("head_dim " << head_dim << ", window " << window);
    CHECK(different == 0);
    std::filesystem::remove_all(folder);
  }
}

TEST_CASE("A captured pass computes what is there when it is replayed") {
  std::mt19937 random(6);
  host_llama host(path_of("qwen3"), 2, 64);
  auto device = gpu::llama_backend<float>::load(path_of("qwen3"), {.max_rows = 33, .hidden_layers = {1}});
  auto kv = cache_for(device, 2, 64, 16);
  write_text(host, device, kv, random, 0, 0, 6);
  const forward_batch first = one_tree(random, 72, 6, 12);
  const gpu::stream stream;
  device_batch batch(first.view(), 5);
  gpu::forward_batch_view view = batch.view();
  view.max_context = 60;
  vocab_rows<float> logits;
  const gpu::graph graph(stream.get(), [&] { logits = device.forward(kv, view, stream.get()); });
  graph.launch(stream.get());
  gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  CHECK(difference(device_rows(logits), host.forward(first.view())) < 1e-5);
  host.commit_first(0, 0);
  write_text(host, device, kv, random, 0, 6, 9);
  const forward_batch second = one_tree(random, 72, 15, 12);
  batch.update(second.view());
  graph.launch(stream.get());
  gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  CHECK(difference(device_rows(logits), host.forward(second.view())) < 1e-5);
  std::vector<row_type> states;
  for (int row = 0; row < 12; ++row)
    states.push_back(host.hidden(1, row));
  CHECK(difference(states_of(device, 1, 12), states) < 1e-5);
}

TEST_CASE("A prompt in chunks leaves the cache as one pass does") {
  std::mt19937 random(7);
  const auto tokens = llama_driver::random_tokens(random, 43, 72);
  const auto on_device = to_device(tokens);
  const gpu::text_view text{on_device.data(), nullptr, 43};
  auto backend = plain_llama<float>::load(path_of("llama"), {.max_rows = 45, .batch_invariant = true});
  auto small = plain_llama<float>::load(path_of("llama"), {.max_rows = 10, .batch_invariant = true});
  auto kv = cache_for(backend, 2, 45), whole_kv = cache_for(backend, 2, 45);
  forward_batch chain;
  chain.begin_sequence(1, 0, 43);
  chain.add_chain(tokens, 0, 0);
  backend.forward(whole_kv, device_batch(chain.view()).view(), nullptr);
  gpu::prefill prefill;
  std::vector<std::pair<std::int32_t, std::int32_t>> passes;
  const auto note = [&](std::int32_t first, std::int32_t n) { passes.emplace_back(first, n); };
  prefill.run(small, kv, 1, text, 0, 3, nullptr, note);
  prefill.run(small, kv, 1, text, 3, 43, nullptr, note);
  CHECK(passes == std::vector<std::pair<std::int32_t, std::int32_t>>{{0, 3}, {3, 10}, {13, 10}, {23, 10}, {33, 10}});
  const auto found = kv.contents(), expected = whole_kv.contents();
  CHECK(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0);
  CHECK(message_of<input_error>([&] { prefill.run(small, kv, 1, text, 0, 46, nullptr); }) ==
        "a text of 46 tokens does not fit a cache of 45.");
}

TEST_CASE("A token or position that does not exist gives NaN logits") {
  auto backend = plain_llama<float>::load(path_of("llama"), {.max_positions = 20});
  auto kv = cache_for(backend, 1, 32);
  for (const auto& [token, position] : {std::pair(72, 0), std::pair(-1, 0), std::pair(3, 20), std::pair(3, -1)}) {
    forward_batch batch;
    batch.begin_sequence(0, 0, 1);
    batch.add_row(token, position, 0, true);
    const auto rows = device_rows(backend.forward(kv, device_batch(batch.view()).view(), nullptr));
    CHECK(std::all_of(rows[0].begin(), rows[0].end(), [](float logit) { return std::isnan(logit); }));
  }
}

TEST_CASE("What does not fit is named") {
  const std::string golden = path_of("llama");
  const auto load = [&](const gpu::llama_options& options) { plain_llama<float>::load(golden, options); };
  CHECK(message_of<option_error>([&] { load({.max_rows = 0}); }) ==
        "option max_rows is 0, but must lie between 1 and 65536.");
  CHECK(message_of<option_error>([&] { load({.max_positions = 65}); }) ==
        "option max_positions is 65, but must lie between 0 and 64.");
  CHECK(message_of<option_error>([&] { load({.hidden_layers = {2}}); }) ==
        "option hidden_layers is 2, but must lie between 0 and 1.");
  CHECK(message_of<model_error>([] { plain_llama<float>::load("/nowhere"); }) ==
        "/nowhere/config.json cannot be opened.");
  auto backend = plain_llama<float>::load(golden, {.max_rows = 4});
  auto kv = cache_for(backend, 1, 32);
  gpu::forward_batch_view batch;
  batch.n_rows = 5;
  CHECK(message_of<input_error>([&] { backend.forward(kv, batch, nullptr); }) ==
        "a batch has 5 rows, but the backend was built for at most 4 (option max_rows).");
  device_kv<float> other(3, 16, 1, 8);
  CHECK(message_of<input_error>([&] { backend.forward(other, gpu::forward_batch_view{}, nullptr); }) ==
        "the cache has 3 layers of 16 numbers a row, but the model 2 of 16.");
  CHECK(message_of<option_error>([&] { backend.hidden(0); }) == "option hidden_layers does not list layer 0.");
  CHECK(message_of<option_error>([&] { backend.reserve(5); }) == "option rows is 5, but must lie between 1 and 4.");

  const std::string folder = temporary("parts");
  std::filesystem::copy(golden, folder);
  std::filesystem::copy(path_of("llama_tied") + "/model.safetensors", folder + "/model.safetensors",
                        std::filesystem::copy_options::overwrite_existing);
  CHECK_THAT(message_of<model_error>([&] { plain_llama<float>::load(folder); }),
             Catch::Matchers::EndsWith("lacks tensor \"lm_head.weight\"."));
  std::ofstream(folder + "/model.safetensors.index.json") << "{}";
  CHECK(message_of<model_error>([&] { plain_llama<float>::load(folder); }) ==
        folder + "/model.safetensors.index.json has no object \"weight_map\".");
  std::filesystem::remove_all(folder);
}

TEST_CASE("What the device does not compute is named") {
  model_config biased;
  biased.family = "olmo2";
  biased.query_key_norm = biased.whole_query_key_norm = biased.query_bias = true;
  CHECK(message_of<model_error>([&] { gpu::model_weights<float>::of_shape(biased); }) ==
        "this model (olmo2) has biases of queries and keys beside norms over all their heads, which the transformer on "
        "the device does not compute; the host's, espalier::llama_backend, does.");
}

TEST_CASE("Forward buckets hold a tree and its root") {
  CHECK(gpu::forward_bucket(1) == 1);
  CHECK(gpu::forward_bucket(2) == 9);
  CHECK(gpu::forward_bucket(9) == 9);
  CHECK(gpu::forward_bucket(10) == 17);
  CHECK(gpu::forward_bucket(257) == 257);
  CHECK(gpu::forward_bucket(1025) == 1025);
  CHECK(gpu::forward_bucket(1026) == 2049);
}

TEST_CASE("What is asked for ahead changes no bit") {
  for (const std::string folder : {"llama", "qwen3", "gpt_neox", "gemma3"}) {
    auto without = plain_llama<float>::load(path_of(folder), {.max_rows = 20, .read_ahead_bytes = 0});
    auto with = plain_llama<float>::load(path_of(folder), {.max_rows = 20, .read_ahead_bytes = 1 << 20});
    auto kv = cache_for(with, 1, 16);
    std::mt19937 random(9);
    const device_batch batch(one_tree(random, with.vocab_size(), 0, 7).view(), 2);
    const auto expected = device_rows(without.forward(kv, batch.view(), nullptr));
    CHECK(device_rows(with.forward(kv, batch.view(), nullptr)) == expected);
  }
  CHECK_THROWS_AS(plain_llama<float>::load(path_of("llama"), {.read_ahead_bytes = -2}), option_error);
}

TEST_CASE("Two over the same weights hold them once and do not disturb one another") {
  std::mt19937 random(12);
  auto one = plain_llama<float>::load(path_of("qwen3"), {.max_rows = 20});
  plain_llama<float> other(one.config(), one.weights(), {.max_rows = 30});
  CHECK(other.weights() == one.weights());
  CHECK(other.max_rows() == 30);
  auto kv = cache_for(one, 1, 16), other_kv = cache_for(other, 1, 16);
  const device_batch batch(one_tree(random, 72, 0, 7).view()), other_batch(one_tree(random, 72, 0, 7).view());
  const auto logits = one.forward(kv, batch.view(), nullptr);
  const auto rows = device_rows(logits);
  const auto others = device_rows(other.forward(other_kv, other_batch.view(), nullptr));
  CHECK(device_rows(logits) == rows);
  CHECK(others != rows);
  CHECK(device_rows(other.forward(kv, batch.view(), nullptr)) == rows);
}

TEST_CASE("Rows of any width are normalised, of which threads keep a part") {
  for (const int width : {3, 2051, 2052, 8192, 8200}) {
    INFO(width << " numbers a row");
    const auto n = static_cast<std::size_t>(width);
    std::mt19937 random(10);
    std::normal_distribution<float> normal(0.5F, 2.0F);
    std::vector<float> stream(2 * n), added(n), scale(n), bias(n);
    for (auto* numbers : {&stream, &added, &scale, &bias}) {
      for (float& x : *numbers)
        x = normal(random);
    }
    const auto on_device = to_device(stream), adds = to_device(added), scales = to_device(scale),
               biases = to_device(bias);
    const gpu::device_array<float> out(2 * n), kept(2 * n);
    gpu::detail::normalise_job<float> job;
    job.stream = on_device.data(), job.added[0] = adds.data(), job.settles = true, job.keep = kept.data();
    job.norms[0] = {scales.data(), biases.data(), out.data()};
    job.width = width, job.epsilon = 1e-5F;
    gpu::detail::normalise(job, 2, nullptr);
    const auto found = to_host(out);
    bool all = to_host(kept) == to_host(on_device);
    for (std::size_t row = 0; row < 2; ++row) {
      double mean = 0, squares = 0;
      for (std::size_t i = 0; i < n; ++i)
        mean += (static_cast<double>(stream[row * n + i]) + added[i]) / width;
      for (std::size_t i = 0; i < n; ++i) {
        const double off = static_cast<double>(stream[row * n + i]) + added[i] - mean;
        squares += off * off / width;
      }
      for (std::size_t i = 0; i < n; ++i) {
        const double off = static_cast<double>(stream[row * n + i]) + added[i] - mean;
        const double expected = off / std::sqrt(squares + 1e-5) * scale[i] + bias[i];
        all = all && std::abs(found[row * n + i] - expected) < 1e-4 * (1 + std::abs(expected));
      }
    }
    CHECK(all);
  }
}

#if defined(ESPALIER_TEST_COUNTS_CALLS)
TEST_CASE("A pass is launches and products, and nothing else") {
  // The cap of logits is a launch of its own; the norm of what a layer adds is part of the norm that follows.
  for (const auto& [folder, per_layer, caps] :
       {std::tuple("llama", 5, 0), std::tuple("qwen3", 5, 0), std::tuple("gpt_neox", 4, 0), std::tuple("mistral", 5, 0),
        std::tuple("gemma", 5, 0), std::tuple("gemma2", 5, 1)}) {
    auto backend = plain_llama<float>::load(path_of(folder), {.max_rows = 20});
    auto kv = cache_for(backend, 1, 16);
    std::mt19937 random(8);
    const device_batch batch(one_tree(random, backend.vocab_size(), 0, 7).view(), 2);
    const std::size_t before = emulator::allocations();
    emulator::reset();
    backend.forward(kv, batch.view(), nullptr);
    CHECK(emulator::calls("cudaLaunchKernelEx") == 2 + 2 * per_layer + caps);
    CHECK(emulator::calls("cublasLtMatmul") == 1 + 2 * 4);
    for (const char* other :
         {"cudaMalloc", "cudaMemcpy", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaDeviceSynchronize"})
      CHECK(emulator::calls(other) == 0);
    CHECK(emulator::allocations() == before);
  }
}
#endif
