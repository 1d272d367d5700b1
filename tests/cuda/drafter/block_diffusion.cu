// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/drafter/block_diffusion.cuh"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "catch.hpp"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/support.cuh"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/state_rows.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/drafter/joint.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/model/llama/block_draft_model.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/cascade.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "model/llama/batch_writer.hpp"
#include "raises.hpp"

// The references were computed by examples/models/block.py in float64: tests/data/golden/make_block_golden.py.

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::to_device;
using llama_driver::device_batch;
using llama_driver::device_kv;
using llama_driver::device_rows;
using llama_driver::difference;
using llama_driver::row_type;

namespace {

const std::string golden = std::string(ESPALIER_TEST_DATA) + "/golden/";

template <class NumberT>
using target_type = gpu::llama_backend<NumberT>;
template <class NumberT>
using model_type = gpu::block_draft_model<NumberT>;

static_assert(gpu::BlockDrafter<gpu::block_diffusion<model_type<float>>>);
static_assert(gpu::BlockDrafter<gpu::block_diffusion<model_type<__nv_bfloat16>&>>);

template <class NumberT>
target_type<NumberT> load_target(std::vector<int> hidden_layers = {0, 1}) {
  return target_type<NumberT>::load(golden + "llama_tied", {.max_rows = 65, .hidden_layers = std::move(hidden_layers)});
}

nlohmann::json reference() {
  std::ifstream file(golden + "block/golden.json");
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

// A text on the device.
struct device_text {
  explicit device_text(const std::vector<token_id>& all) : tokens(to_device(all)), state(1) { set_size(1); }

  void set_size(std::int32_t size) const {
    const gpu::text_state now{size, size};
    state.upload(std::span<const gpu::text_state>(&now, 1), nullptr);
    gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }
  gpu::text_batch texts() const {
    auto batch = gpu::text_batch::of({}, {tokens.data(), state.data(), static_cast<std::int32_t>(tokens.size())});
    batch.max_context = static_cast<std::int32_t>(tokens.size());
    return batch;
  }

  gpu::device_array<token_id> tokens;
  gpu::device_array<gpu::text_state> state;
};

// The target's pass over tokens [first, end) of a text.
template <class BackendT, class KVStoreT>
void pass_over(BackendT& target, KVStoreT& kv, const std::vector<token_id>& text, int first, int end) {
  forward_batch batch;
  batch.begin_sequence(0, first, end - first);
  batch.add_chain(std::span(text).subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(end - first)),
                  first, 0);
  target.forward(kv, device_batch(batch.view(), 1).view(), nullptr);
}

template <class NumberT>
device_kv<NumberT> target_cache(const target_type<NumberT>& target) {
  return device_kv<NumberT>(target.config().n_layers, target.config().kv_size(), 1, 64);
}

// Notes how many rows of each path it is given.
struct noting_model {
  struct context {};

  std::int32_t vocab_size() const { return 5; }
  std::int32_t block_length() const { return 4; }
  std::int32_t max_positions() const { return 100; }
  context make_context(std::int32_t) const { return {}; }
  template <class BackendT>
  void read(context&, const BackendT&, const gpu::state_rows& rows, cudaStream_t) {
    most_rows = rows.max;
  }
  vocab_rows<float> forward(context&, const gpu::text_batch&, std::int32_t, cudaStream_t) { return {}; }

  std::int32_t most_rows = 0;
};

}  // namespace

TEMPLATE_TEST_CASE("The logits of a block agree with the reference, at every length and place", "", float, __half,
                   __nv_bfloat16) {
  const double tolerance = std::is_same_v<TestType, float> ? 1e-5 : std::is_same_v<TestType, __half> ? 6e-3 : 4e-2;
  const nlohmann::json cases = reference();
  const auto text = cases["tokens"].get<std::vector<token_id>>();
  auto target = load_target<TestType>();
  auto model = model_type<TestType>::load(golden + "block", target);
  CHECK(model.vocab_size() == 72);
  CHECK(model.block_length() == 7);
  CHECK(model.max_positions() == 64);
  const device_text on_device(text);
  REQUIRE(cases["blocks"].size() == 5);
  for (const nlohmann::json& block : cases["blocks"]) {
    const auto expected = block["logits"].get<std::vector<row_type>>();
    const int position = block["pending_at"].get<int>();
    gpu::block_diffusion drafter(model, {.length = static_cast<int>(expected.size())});
    REQUIRE(drafter.block_length() == static_cast<int>(expected.size()));
    drafter.reserve(8, 1, nullptr);
    drafter.begin(0, on_device.texts().text(0), text, 0, nullptr);
    auto kv = target_cache<TestType>(target);
    for (int first = 0; first < position; first += 5) {
      const int n = std::min(5, position - first);
      pass_over(target, kv, text, first, first + n);
      drafter.read(target, 0, first, n, nullptr);
    }
    on_device.set_size(position + 1);
    INFO("pending at " << position << ", " << expected.size() << " rows");
    const auto logits = drafter.propose_block(on_device.texts(), nullptr);
    CHECK(difference(device_rows(logits), expected) < tolerance);
    CHECK(device_rows(drafter.propose_block(on_device.texts(), nullptr)) == device_rows(logits));
    CHECK(drafter.propose_block(on_device.texts(), nullptr).data == logits.data);
  }
}

TEST_CASE("In a round the accepted path is read, at the places that its tokens take, captured or not") {
  const auto text = reference()["tokens"].get<std::vector<token_id>>();
  auto target = load_target<float>();
  auto model = model_type<float>::load(golden + "block", target);
  const device_text on_device(text);
  const int pending = 6;

  // As it should come out: all states from one pass.
  gpu::block_diffusion expected(model);
  expected.reserve(8, 1, nullptr);
  auto whole_kv = target_cache<float>(target);
  pass_over(target, whole_kv, text, 0, 13);
  expected.read(target, 0, 0, 13, nullptr);
  on_device.set_size(9 + 1);
  const auto wanted = device_rows(expected.propose_block(on_device.texts(), nullptr));

  // A tree whose nodes 0, 2 and 5 are the text's tokens 6, 7 and 8.
  const llama_driver::tree tree{{text[6], 3, text[7], 60, 61, text[8], 62}, {-1, 0, 0, 1, 2, 2, 5}};
  forward_batch batch;
  batch.begin_sequence(0, pending, 7);
  llama_driver::add_tree(batch, tree, pending);
  const device_batch uploaded(batch.view(), 2);
  const auto rows = to_device(std::vector<std::int32_t>{0, 2, 5, 77, 78, 79, 80, 81, 82});
  const gpu::stream stream;
  for (const bool captured : {false, true}) {
    gpu::block_diffusion drafter(model);
    drafter.reserve(8, 1, nullptr);
    auto kv = target_cache<float>(target);
    pass_over(target, kv, text, 0, pending);
    // As a prompt's pass, or as a chunk of another text's round, which may have had more rows.
    if (captured) {
      drafter.read(target, 0, 0, pending, nullptr);
    } else {
      const auto chunks = to_device(std::vector<gpu::prompt_chunk>{{0, 0, pending, 0}});
      drafter.read(target, chunks.data(), 1, pending + 3, nullptr);
      gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
    on_device.set_size(pending + 1);
    const auto n = to_device(std::vector<std::int32_t>{captured ? 0 : 3});
    const gpu::path_view path{nullptr, nullptr, rows.data(), n.data(), nullptr, 9};
    const auto round = [&](cudaStream_t s) {
      target.forward(kv, uploaded.view(), s);
      drafter.read(target, on_device.texts(), path, uploaded.view().sequences, s);
      drafter.commit(on_device.texts(), path, s);
    };
    gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (captured) {
      const gpu::graph graph(stream.get(), [&] { round(stream.get()); });
      graph.launch(stream.get());  // a fault: nothing is accepted, and nothing read
      gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
      const std::int32_t accepted = 3;
      n.upload(std::span<const std::int32_t>(&accepted, 1), nullptr);
      gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
      graph.launch(stream.get());
      gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    } else {
      round(nullptr);
    }
    on_device.set_size(9 + 1);
    CHECK(difference(device_rows(drafter.propose_block(on_device.texts(), nullptr)), wanted) < 1e-6);
  }
}

TEST_CASE("A text beyond the model's last position has a block that means nothing, and harms nothing") {
  std::mt19937 random(3);
  const auto text = llama_driver::random_tokens(random, 70, 72);
  auto target = load_target<float>();
  auto model = model_type<float>::load(golden + "block", target);
  const device_text on_device(text);
  gpu::block_diffusion drafter(model);
  CHECK(drafter.capacity() == 64);
  drafter.reserve(8, 1, nullptr);
  auto kv = target_cache<float>(target);
  pass_over(target, kv, text, 0, 60);
  drafter.read(target, 0, 0, 60, nullptr);
  for (const std::int32_t size : {60, 64}) {  // the last place that the model knows is 63
    on_device.set_size(size);
    if (size == 64) drafter.read(target, 0, 60, 10, nullptr);
    for (const row_type& row : device_rows(drafter.propose_block(on_device.texts(), nullptr)))
      CHECK(std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }));
  }
  on_device.set_size(60);
  const auto before = device_rows(drafter.propose_block(on_device.texts(), nullptr));
  on_device.set_size(70);
  drafter.propose_block(on_device.texts(), nullptr);
  on_device.set_size(60);
  CHECK(device_rows(drafter.propose_block(on_device.texts(), nullptr)) == before);
}

TEST_CASE("In a joint a block drafter reads the states of paths that are deeper than its block") {
  noting_model model;
  const gpu::path_view paths{.max = 30};
  const auto rows_of = [&](auto&& drafter, const auto& policy) {
    gpu::reserve_draft(drafter, policy, 1, nullptr);
    std::get<0>(drafter.parts()).read(model, {}, paths, nullptr, nullptr);
    return model.most_rows;
  };
  const auto drafters = [&] { return gpu::joint(gpu::block_diffusion(model), gpu::prompt_lookup()); };
  CHECK(gpu::block_diffusion(model).capacity() == 100);
  CHECK(rows_of(drafters(), gpu::cascade{gpu::best_first({.budget = 8}), gpu::chain({.length = 10})}) == 11);
  CHECK(rows_of(drafters(), gpu::cascade{gpu::best_first({.budget = 8}), gpu::chain({.length = 2})}) == 5);
}

TEST_CASE("What does not fit the target is named") {
  auto other = load_target<float>({1});
  CHECK(message_of<option_error>([&] { model_type<float>::load(golden + "block", other); }) ==
        "option hidden_layers of the target does not list layer 0, which the block draft reads; it must list 0, 1.");
  auto qwen = target_type<float>::load(golden + "qwen3");
  CHECK(message_of<model_error>([&] { model_type<float>::load(golden + "block", qwen); }) ==
        golden + "block/config.json: \"hidden_size\" is 32, but the target has 36 numbers in a hidden state.");
  auto target = load_target<float>();
  auto model = model_type<float>::load(golden + "block", target);
  CHECK(message_of<option_error>([&] { gpu::block_diffusion(model, {.length = 8}); }) ==
        "option length of a block is 8, but must lie between 0 and 7.");
  gpu::block_diffusion drafter(model);
  CHECK_THROWS_AS(drafter.begin(0, {}, {}, 0, nullptr), input_error);
}
