// SPDX-License-Identifier: BSL-1.0
#include "espalier/cuda/model/llama/parallel_head_model.cuh"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/drafter/block_scene.cuh"
#include "cuda/drafter/three_texts.cuh"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/support.cuh"
#include "espalier/cost/cost_curve.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/state_rows.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/stream.cuh"
#include "espalier/cuda/decoder/batch_decoder.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/block_diffusion.cuh"
#include "espalier/cuda/drafter/factorised.cuh"
#include "espalier/cuda/drafter/joint.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/model/llama/draft_head_model.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/cascade.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/iid_paths.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/model/llama/draft_head_config.hpp"
#include "espalier/model/llama/model_files.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"
#include "model/llama/batch_writer.hpp"
#include "raises.hpp"

// The references were computed in float64 by speculators' own class from the very weights in the folders.

using namespace block_scene;
using llama_driver::device_rows;
using llama_driver::difference;

namespace {

template <class NumberT>
using head_type = gpu::parallel_head_model<NumberT>;
using drafter_type = gpu::block_diffusion<head_type<float>&>;
static_assert(gpu::BlockDrafter<drafter_type> && !gpu::ConditionedBlockDrafter<drafter_type>);
static_assert(gpu::CatchingUpDrafter<drafter_type>);
static_assert(gpu::DepthLimitedDrafter<gpu::factorised<drafter_type>>);
static_assert(gpu::FeatureDrafter<drafter_type, target_type<float>>);
static_assert(drafter_type::falls_behind && !gpu::block_diffusion<model_type<float>>::falls_behind);

const std::string heads = golden + "heads/";

// The target of a head, which keeps the states that the head reads.
template <class NumberT>
target_type<NumberT> target_of(const std::string& head) {
  draft_head_config config = draft_head_config::load(head);
  config.require_target(model_files::open(heads + "target").config, heads + "target");
  return target_type<NumberT>::load(heads + "target", {.max_rows = 65, .hidden_layers = config.hidden_layers});
}

std::vector<token_id> text_of(const std::string& name) {
  return json_of(heads + name + "/golden.json")["text"].get<std::vector<token_id>>();
}

// A head that notes how many tokens of a text it knows when the text begins, and how many it then has.
struct noting_head {
  using context_type = head_type<float>::context_type;

  head_type<float>& model;
  std::vector<std::pair<std::int32_t, std::int32_t>> begun{};

  std::int32_t vocab_size() const { return model.vocab_size(); }
  std::int32_t columns() const { return model.columns(); }
  const token_id* tokens() const { return model.tokens(); }
  std::int32_t block_length() const { return model.block_length(); }
  std::int32_t max_positions() const { return model.max_positions(); }
  auto make_context(std::int32_t texts, std::int32_t n = 0) const { return model.make_context(texts, n); }
  template <class BackendT>
  void read(context_type& context, const BackendT& backend, const gpu::state_rows& rows, cudaStream_t stream) {
    model.read(context, backend, rows, stream);
  }
  template <class PrefillT>
  void begin(PrefillT& prefill, context_type& context, std::int32_t place, gpu::text_view text, std::int32_t n_tokens,
             std::int32_t n_known, cudaStream_t stream) {
    begun.emplace_back(n_known, n_tokens);
    model.begin(prefill, context, place, text, n_tokens, n_known, stream);
  }
  auto forward(context_type& context, const gpu::text_batch& texts, std::int32_t length, cudaStream_t stream) {
    return model.forward(context, texts, length, stream);
  }
};

// The rows of a block after the first `size` tokens of a text, which a new drafter has read.
template <class NumberT>
std::vector<row_type> block_of(head_type<NumberT>& model, target_type<NumberT>& target,
                               const std::vector<token_id>& text, int size, int length = 0) {
  gpu::block_diffusion drafter(model, {.length = length});
  drafter.reserve(8, 1, nullptr);
  const device_text on_device(text, {size});
  if (size > 1) read_before(drafter, target, text, size - 1);
  drafter.begin(0, on_device.texts().text(0), std::span(text).first(static_cast<std::size_t>(size)), 0, nullptr);
  return device_rows(drafter.propose_block(on_device.texts(), nullptr));
}

}  // namespace

TEST_CASE("A P-EAGLE head on the device has the rows of speculators' own class, and drafts its tokens") {
  const auto check = [](auto number, const std::string& name, double tolerance) {
    using number_type = decltype(number);
    const std::string folder = heads + name;
    const nlohmann::json cases = json_of(folder + "/golden.json");
    const auto text = cases["text"].get<std::vector<token_id>>();
    const auto tokens = cases["tokens"].get<std::vector<token_id>>();
    auto target = target_of<number_type>(folder);
    auto model = head_type<number_type>::load(folder, target);
    CHECK(model.vocab_size() == 96);
    CHECK(model.block_length() == 4);
    CHECK(model.max_positions() == 125);
    CHECK((model.tokens() == nullptr) == tokens.empty());
    if (!tokens.empty()) CHECK(espalier_test::to_host(model.tokens(), tokens.size()) == tokens);
    for (const nlohmann::json& block : cases["blocks"]) {
      const int at = block["pending_at"];
      INFO(name << ", pending at " << at);
      const auto expected = block["logits"].get<std::vector<row_type>>();
      const auto rows = block_of(model, target, text, at + 1);
      REQUIRE(rows.size() == 4);
      CHECK(difference(rows, expected) < tolerance);
      for (std::size_t r = 0; r < 4 && tolerance < 1e-3; ++r) {
        CHECK(std::max_element(rows[r].begin(), rows[r].end()) - rows[r].begin() ==
              std::max_element(expected[r].begin(), expected[r].end()) - expected[r].begin());
      }
    }
  };
  for (const char* name : {"peagle", "peagle_each"}) {
    check(float(), name, 1e-4);
    check(__nv_bfloat16(), name, 0.2);
  }
}

TEST_CASE("A P-EAGLE block on the device depends on the text alone, and its rows on no later row") {
  auto target = target_of<float>(heads + "peagle_each");
  auto model = head_type<float>::load(heads + "peagle_each", target);
  const auto text = text_of("peagle_each");
  auto longer = text;
  longer.insert(longer.end(), text.rbegin(), text.rend());
  const auto size = static_cast<std::int32_t>(longer.size());
  const auto expected = block_of(model, target, longer, size);
  const auto shorter = block_of(model, target, longer, size, 2);
  CHECK(difference(shorter, {expected[0], expected[1]}) < 1e-6);
  // A text that grows by one to three tokens a round, from a text of one token on; the rows that begin() makes for a
  // long text are those that rounds make for one that grows.
  gpu::block_diffusion drafter(model);
  drafter.reserve(8, 1, nullptr);
  const device_text on_device(longer, {1});
  drafter.begin(0, on_device.texts().text(0), std::span(longer).first(1), 0, nullptr);
  auto kv = target_cache<float>(target);
  for (std::int32_t now = 1, step = 1; now < size; now += step, step = std::min(step % 3 + 1, size - now)) {
    on_device.set_size(now);
    const auto rows = device_rows(drafter.propose_block(on_device.texts(), nullptr));
    if (now < 4) CHECK(difference(rows, block_of(model, target, longer, now)) < 1e-6);
    pass_over(target, kv, longer, now - 1, now - 1 + step);
    drafter.read(target, 0, now - 1, step, nullptr);
  }
  on_device.set_size(size);
  CHECK(difference(device_rows(drafter.propose_block(on_device.texts(), nullptr)), expected) < 1e-6);
  // Another text with the same first tokens: the states and rows after them are written anew.
  std::vector<token_id> other = longer;
  other[15] = 50;
  auto other_kv = target_cache<float>(target);
  pass_over(target, other_kv, other, 0, 15);
  pass_over(target, other_kv, other, 15, size - 1);
  drafter.read(target, 0, 15, size - 1 - 15, nullptr);
  const device_text changed(other, {size});
  drafter.begin(0, changed.texts().text(0), other, 15, nullptr);
  const auto of_other = device_rows(drafter.propose_block(changed.texts(), nullptr));
  CHECK(difference(of_other, block_of(model, target, other, size)) < 1e-6);
  CHECK(difference(of_other, expected) > 1e-3);
}

TEST_CASE("P-EAGLE blocks of several texts in one pass are those of each alone, and can be captured") {
  auto target = target_of<float>(heads + "peagle");
  auto model = head_type<float>::load(heads + "peagle", target);
  const auto text = text_of("peagle");
  const std::vector<std::int32_t> sizes{2, static_cast<std::int32_t>(text.size()), 1};
  gpu::block_diffusion together(model);
  together.catch_up(6);
  together.reserve(8, 3, nullptr);
  const device_text all(text, sizes);
  std::vector<row_type> expected;
  for (std::int32_t place = 0; place < 3; ++place) {
    const std::int32_t size = sizes[static_cast<std::size_t>(place)];
    auto kv = target_cache<float>(target);
    if (size > 1) pass_over(target, kv, text, 0, size - 1);
    if (size > 1) together.read(target, place, 0, size - 1, nullptr);
    together.begin(place, all.texts().text(place), std::span(text).first(static_cast<std::size_t>(size)), 0, nullptr);
    for (const row_type& row : block_of(model, target, text, size))
      expected.push_back(row);
  }
  const vocab_rows<float> logits = together.propose_block(all.texts(), nullptr);
  CHECK(difference(device_rows(logits), expected) < 1e-6);
  const gpu::stream stream;
  gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  const gpu::graph graph(stream.get(), [&] { together.propose_block(all.texts(), stream.get()); });
  gpu::require(cudaMemset(const_cast<float*>(logits.data), 0, expected.size() * expected[0].size() * sizeof(float)),
               "cudaMemset");
  graph.launch(stream.get());
  gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
  CHECK(difference(device_rows(logits), expected) < 1e-6);
}

TEST_CASE("A text beyond a P-EAGLE head's last position has a block that means nothing, and harms nothing") {
  const changed_folder few(heads + "peagle", {{"transformer_layer_config", {{"max_position_embeddings", 12}}}});
  auto target = target_of<float>(few.path());
  auto model = head_type<float>::load(few.path(), target);
  CHECK(model.max_positions() == 9);
  const auto text = text_of("peagle");
  gpu::block_diffusion drafter(model);
  CHECK(drafter.capacity() == 9);
  drafter.reserve(8, 1, nullptr);
  const device_text on_device(text);
  read_before(drafter, target, text, 11);
  drafter.begin(0, on_device.texts().text(0), text, 0, nullptr);
  on_device.set_size(9);
  const auto before = device_rows(drafter.propose_block(on_device.texts(), nullptr));
  CHECK(difference(before, block_of(model, target, text, 9)) < 1e-6);
  on_device.set_size(12);
  for (const row_type& row : device_rows(drafter.propose_block(on_device.texts(), nullptr)))
    CHECK(std::all_of(row.begin(), row.end(), [](float x) { return std::isfinite(x); }));
  on_device.set_size(9);
  CHECK(device_rows(drafter.propose_block(on_device.texts(), nullptr)) == before);
}

TEST_CASE("Trees over a P-EAGLE head write the target's text, greedily and with a temperature") {
  const std::vector<token_id> prompt{5, 17, 80, 3};
  for (const char* name : {"peagle", "peagle_each"}) {
    INFO(name);
    auto target = target_of<float>(heads + name);
    auto model = head_type<float>::load(heads + name, target);
    gpu::contiguous_kv<float> kv(target.config().n_layers, target.config().kv_size(), 1, 64);
    const auto write = [&](auto drafter, auto policy) {
      return written(gpu::make_decoder(std::move(drafter), std::move(policy), greedy(), kv, target), prompt, 14);
    };
    const auto block = [&] { return gpu::block_diffusion(model); };
    const auto plainly = write(gpu::no_drafter(), gpu::plain());
    CHECK(write(block(), gpu::chain({.length = 3})) == plainly);
    CHECK(write(block(), gpu::best_first({.budget = 8})) == plainly);
    CHECK(write(gpu::factorised(block()), gpu::chain({.length = 6})) == plainly);
    CHECK(write(gpu::factorised(block()), gpu::dynatree({.budget = 12})) == plainly);
    CHECK(write(gpu::joint(block(), gpu::prompt_lookup()),
                gpu::cascade{gpu::best_first({.budget = 8}), gpu::chain({.length = 6})}) == plainly);
    if (name != std::string("peagle")) continue;
    const decoder_options drawn{.text = {.sampling = {.temperature = 1}, .seed = 3}};
    const auto draw = [&](auto drafter, auto policy, auto verifier) {
      return written(gpu::make_decoder(std::move(drafter), std::move(policy), verifier, kv, target, drawn), prompt, 10);
    };
    const auto sampled = draw(gpu::no_drafter(), gpu::plain(), target_only());
    CHECK(sampled != std::vector<token_id>(plainly.begin(), plainly.begin() + 10));
    CHECK(draw(block(), gpu::best_first({.budget = 8}), target_only()) == sampled);
    CHECK(draw(gpu::factorised(block()), gpu::iid_paths({.paths = 2, .length = 3}), traversal()).size() == 10);
  }
}

TEST_CASE("In a round the drafted path's states are read from the target, captured or not") {
  const auto text = text_of("peagle");
  auto target = target_of<float>(heads + "peagle");
  auto model = head_type<float>::load(heads + "peagle", target);
  const int pending = 5;
  const auto wanted = block_of(model, target, text, 9);
  const device_text on_device(text);
  // A tree whose nodes 0, 2 and 5 are the text's tokens 5, 6 and 7.
  const llama_driver::tree shape{{text[5], 3, text[6], 60, 61, text[7], 62}, {-1, 0, 0, 1, 2, 2, 5}};
  forward_batch batch;
  batch.begin_sequence(0, pending, 7);
  llama_driver::add_tree(batch, shape, pending);
  const device_batch uploaded(batch.view(), 2);
  const auto rows = to_device(std::vector<std::int32_t>{0, 2, 5, 77, 78, 79, 80});
  const auto n = to_device(std::vector<std::int32_t>{3});
  const gpu::path_view path{nullptr, nullptr, rows.data(), n.data(), nullptr, 7};
  const gpu::stream stream;
  for (const bool captured : {false, true}) {
    drafter_type drafter(model);
    drafter.reserve(8, 1, nullptr);
    auto kv = target_cache<float>(target);
    pass_over(target, kv, text, 0, pending);
    drafter.read(target, 0, 0, pending, nullptr);
    on_device.set_size(pending + 1);
    drafter.begin(0, on_device.texts().text(0), std::span(text).first(pending + 1), 0, nullptr);
    const auto round = [&](cudaStream_t s) {
      drafter.propose_block(on_device.texts(), s);
      target.forward(kv, uploaded.view(), s);
      drafter.read(target, on_device.texts(), path, uploaded.view().sequences, s);
      drafter.commit(on_device.texts(), path, s);
    };
    gpu::require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (captured) {
      const gpu::graph graph(stream.get(), [&] { round(stream.get()); });
      graph.launch(stream.get());
      gpu::require(cudaStreamSynchronize(stream.get()), "cudaStreamSynchronize");
    } else {
      round(nullptr);
    }
    on_device.set_size(9);
    CHECK(difference(device_rows(drafter.propose_block(on_device.texts(), nullptr)), wanted) < 1e-6);
  }
}

TEST_CASE("A P-EAGLE head drafts for many texts, and each is plain decoding's") {
  auto target = target_of<float>(heads + "peagle_each");
  auto model = head_type<float>::load(heads + "peagle_each", target);
  const espalier_test::three_texts texts(target);
  texts.check_together(target, gpu::block_diffusion(model), gpu::best_first({.budget = 8}));
}

TEST_CASE("A P-EAGLE head is told of a text again after rounds that did not ask it") {
  auto target = target_of<float>(heads + "peagle");
  auto model = head_type<float>::load(heads + "peagle", target);
  noting_head noted{model};
  gpu::contiguous_kv<float> kv(target.config().n_layers, target.config().kv_size(), 1, 128);
  // The draft takes so long that rounds are plain, but for one in 64.
  auto decode = gpu::make_batch_decoder(
      gpu::block_diffusion(noted), gpu::chain({.length = 3}), greedy(), kv, target,
      {.max_texts = 1, .costs = cost_model{"", "", "", cost_curve::linear(5, 0), cost_curve::linear(1, 0)}});
  decode.add(std::vector<token_id>{5, 17, 80, 3}, {.max_tokens = 80});
  while (!decode.idle()) {
    for (const text_event& e : decode.step())
      REQUIRE(!e.error);
  }
  REQUIRE(noted.begun.size() == 2);
  CHECK(noted.begun[0] == std::pair(0, 4));
  CHECK(noted.begun[1].first >= 4);
  CHECK(noted.begun[1].second >= noted.begun[1].first + 64);
}

TEST_CASE("A P-EAGLE head that does not fit, or another kind of head, is refused on the device by a sentence") {
  auto target = target_of<float>(heads + "peagle");
  const auto load = [&](const std::string& path) {
    return message_of<model_error>([&] { head_type<float>::load(path, target); });
  };
  CHECK(says(load(heads + "plain"), "plain/config.json is of no P-EAGLE head: draft_head_model reads it."));
  CHECK(says(message_of<model_error>([&] { gpu::draft_head_model<float>::load(heads + "peagle", target); }),
             "peagle/config.json is of a P-EAGLE head", "parallel_head_model reads it."));
  CHECK(says(message_of<model_error>([&] { model_type<float>::load(heads + "peagle", target); }),
             "peagle/config.json is of a P-EAGLE head: parallel_head_model reads it."));
  CHECK(message_of<option_error>([&] { head_type<float>::load(heads + "peagle_each", target); }) ==
        "option hidden_layers of the target does not list layer 0, which the draft head reads; it must list 0, 3.");
  auto model = head_type<float>::load(heads + "peagle", target, 23);
  gpu::block_diffusion drafter(model);
  CHECK(says(message_of<option_error>([&] { drafter.reserve(8, 3, nullptr); }), "max_rows of the draft head is 23",
             "24"));
  CHECK_THROWS_AS(drafter.begin(0, {}, {}, 0, nullptr), input_error);
}
