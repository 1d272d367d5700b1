// SPDX-License-Identifier: BSL-1.0
// Models with recurrent layers on the device: their numbers, their trees, whole texts, and what goes wrong.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "cuda/model/llama/host_llama.hpp"
#include "cuda/model/llama/llama_driver.cuh"
#include "cuda/model/llama/llama_scenes.cuh"
#include "cuda/support.cuh"
#include "espalier/core/forward_batch.hpp"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/decoder/batch_decoder.cuh"
#include "espalier/cuda/decoder/decoder.cuh"
#include "espalier/cuda/drafter/autoregressive.cuh"
#include "espalier/cuda/drafter/no_drafter.cuh"
#include "espalier/cuda/drafter/prompt_lookup.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/cuda/kv_store/contiguous.cuh"
#include "espalier/cuda/kv_store/recurrent.cuh"
#include "espalier/cuda/model/llama/llama_backend.cuh"
#include "espalier/cuda/tree_policy/best_first.cuh"
#include "espalier/cuda/tree_policy/chain.cuh"
#include "espalier/cuda/tree_policy/dynatree.cuh"
#include "espalier/cuda/tree_policy/plain.cuh"
#include "espalier/verifier/greedy.hpp"
#include "raises.hpp"

using namespace espalier;
namespace gpu = espalier::cuda;
using espalier_test::to_device;
using espalier_test::to_host;
using llama_driver::device_batch;
using llama_driver::device_rows;
using llama_driver::difference;
using llama_driver::row_type;
using llama_scenes::one_tree;
using llama_scenes::rounding;
using llama_scenes::states_of;
using llama_scenes::two_sequences;
using llama_scenes::write_text;

namespace {

const std::vector<std::string> folders = {"bamba",
                                          "qwen3_next",
                                          "qwen3_next_plain",
                                          "qwen3_5",
                                          "qwen3_5_moe",
                                          "qwen3_next/model.gguf",
                                          "qwen3_5/model.gguf",
                                          "qwen3_5_moe/model.gguf"};

std::string path_of(const std::string& folder) {
  return std::string(ESPALIER_TEST_DATA) + "/golden/" + folder;
}

nlohmann::json golden_of(const std::string& model) {
  std::ifstream file(path_of(model.substr(0, model.find('/'))) + "/golden.json");
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

std::vector<row_type> rows_in(const nlohmann::json& golden) {
  return golden.get<std::vector<row_type>>();
}

// A folder with a random hybrid, as long as this object lives.
struct random_hybrid {
  std::string folder;

  explicit random_hybrid(recurrence_kind kind, float noise = 0, int state = 24)
      : folder((std::filesystem::temp_directory_path() /
                ("espalier_cuda_hybrid_" + std::to_string(static_cast<int>(kind)) + "_" + std::to_string(noise) + "_" +
                 std::to_string(state)))
                   .string()) {
    write_random_hybrid(folder, kind, noise, state);
  }
  random_hybrid(const random_hybrid&) = delete;
  ~random_hybrid() { std::filesystem::remove_all(folder); }
};

const auto kinds = {recurrence_kind::mamba2, recurrence_kind::gated_delta};

template <class BackendT>
auto cache_for(const BackendT& backend, int n_sequences, int capacity, int rows = 256) {
  return gpu::device_cache<typename BackendT::weight_number>(backend.config(), n_sequences, capacity, rows);
}

// Passes over a chain and a tree of one sequence.
forward_batch chain_of(std::span<const token_id> tokens, int sequence, int prefix) {
  forward_batch batch;
  batch.begin_sequence(sequence, prefix, static_cast<int>(tokens.size()));
  llama_driver::add_whole_chain(batch, tokens, prefix);
  return batch;
}
forward_batch tree_of(const llama_driver::tree& tree, int sequence, int prefix) {
  forward_batch batch;
  batch.begin_sequence(sequence, prefix, static_cast<int>(tree.tokens.size()));
  llama_driver::add_tree(batch, tree, prefix);
  return batch;
}

template <class BackendT, class KVStoreT>
std::vector<row_type> rows_of(BackendT& backend, KVStoreT& kv, const forward_batch& batch, int padding = 0) {
  return device_rows(backend.forward(kv, device_batch(batch.view(), padding).view(), nullptr));
}

// Keeps rows after `base` of a sequence.
template <class KVStoreT>
void commit(KVStoreT& kv, int sequence, int base, const std::vector<std::int32_t>& kept) {
  std::vector<std::int32_t> words{base, static_cast<std::int32_t>(kept.size())};
  words.insert(words.end(), kept.begin(), kept.end());
  const auto on_device = to_device(words);
  kv.commit(gpu::text_batch::of({}, {}, 0, sequence),
            {on_device.data(), on_device.data() + 2, on_device.data() + 1, words[1]}, nullptr);
}

}  // namespace

TEST_CASE("Logits and hidden states of hybrids agree with transformers, in a chain, a tree and a ragged batch") {
  for (const std::string& model : folders) {
    INFO(model);
    const nlohmann::json golden = golden_of(model);
    const auto tokens = golden["tokens"].get<std::vector<token_id>>();
    const auto prefix = golden["tree"]["prefix"].get<std::vector<token_id>>();
    const llama_driver::tree tree{golden["tree"]["tokens"], golden["tree"]["parents"]};
    const auto n = static_cast<int>(tokens.size());
    auto backend = gpu::llama_backend<float>::load(path_of(model), {.max_rows = 60, .hidden_layers = {0, 1}});
    auto kv = cache_for(backend, 2, 64);
    CHECK(difference(rows_of(backend, kv, chain_of(tokens, 0, 0), 2), rows_in(golden["logits"])) < 1e-4);
    for (const int layer : {0, 1})
      CHECK(difference(states_of(backend, layer, n),
                       rows_in(golden["hidden_states"][static_cast<std::size_t>(layer)])) < 1e-4);
    const int end = static_cast<int>(prefix.size());
    rows_of(backend, kv, chain_of(prefix, 1, 0));
    CHECK(difference(rows_of(backend, kv, tree_of(tree, 1, end)), rows_in(golden["tree"]["logits"])) < 1e-4);
    forward_batch both = chain_of(tokens, 0, 0);
    both.begin_sequence(1, end, static_cast<int>(tree.tokens.size()));
    llama_driver::add_tree(both, tree, end);
    std::vector<row_type> expected = rows_in(golden["logits"]);
    for (const row_type& row : rows_in(golden["tree"]["logits"]))
      expected.push_back(row);
    CHECK(difference(rows_of(backend, kv, both, 3), expected) < 1e-4);
  }
}

TEMPLATE_TEST_CASE("Logits, hidden states and later passes of a hybrid are the host's, in every type", "", float,
                   __half, __nv_bfloat16) {
  unsigned seed = 1;
  for (const std::string& folder : {path_of("bamba"), path_of("qwen3_5"), path_of("qwen3_next")}) {
    INFO(folder);
    std::mt19937 random(seed++);
    host_llama host(folder, 2, 48);
    auto device = gpu::llama_backend<TestType>::load(folder, {.max_rows = 40, .hidden_layers = {1, 0}});
    const int vocab = host.config().vocab_size;
    auto kv = cache_for(device, 2, 48);
    write_text(host, device, kv, random, 0, 0, 13);
    write_text(host, device, kv, random, 1, 0, 4);
    const forward_batch batch = two_sequences(random, vocab, 4, 13);
    const auto expected = host.forward(batch.view());
    // With 16 bits a row may choose another expert, and is another row then.
    const bool chooses = host.config().has_mixtures() && sizeof(TestType) == 2;
    const std::size_t most = chooses ? expected.size() / 3 : 0;
    // A state adds up the roundings of many tokens.
    constexpr double tolerance = 2 * rounding<TestType>;
    const auto found = rows_of(device, kv, batch, 2);
    CHECK(llama_driver::rows_beyond(tolerance, found, expected) <= most);
    for (const int layer : {0, 1}) {
      std::vector<row_type> states;
      for (int row = 0; row < 16; ++row)
        states.push_back(host.hidden(layer, row));
      CHECK(llama_driver::rows_beyond(tolerance, states_of(device, layer, 16), states) <= most);
    }
  }
}

TEMPLATE_TEST_CASE("With batch_invariant rows of a hybrid's trees are those of plain decoding, bit for bit", "", float,
                   __nv_bfloat16) {
  for (const recurrence_kind kind : kinds) {
    const random_hybrid hybrid(kind);
    auto backend = gpu::llama_backend<TestType>::load(hybrid.folder, {.max_rows = 60, .batch_invariant = true});
    // Room for two passes, so that memory is used again before the text ends.
    auto kv = cache_for(backend, 2, 200, 60), plain_kv = cache_for(backend, 1, 200, 24);
    std::mt19937 random(5);
    int base = 0, position = 0, different = 0;
    std::vector<row_type> plain;
    for (int round = 0; round < 10; ++round) {
      const auto tree = llama_driver::random_tree(random, 30, 40);
      const auto found = rows_of(backend, kv, tree_of(tree, 1, base), 3);
      const int leaf = static_cast<int>(random() % 30);
      const std::vector<int> path = tree.path_to(leaf);
      for (const int node : path) {
        const token_id token = tree.tokens[static_cast<std::size_t>(node)];
        plain = rows_of(backend, plain_kv, chain_of(std::span(&token, 1), 0, position++));
        different += plain[0] == found[static_cast<std::size_t>(node)] ? 0 : 1;
      }
      commit(kv, 1, base, {path.begin(), path.end()});
      base += static_cast<int>(path.size());
    }
    CHECK(different == 0);
    CHECK(base > 30);
    CHECK(std::isfinite(plain[0][0]));
  }
}

TEST_CASE("A prompt of a hybrid in chunks is one pass over it, as far as its cache has room") {
  for (const recurrence_kind kind : kinds) {
    const random_hybrid hybrid(kind);
    auto backend = gpu::llama_backend<float>::load(hybrid.folder, {.max_rows = 45, .batch_invariant = true});
    std::mt19937 random(7);
    const auto tokens = llama_driver::random_tokens(random, 43, 40);
    const auto on_device = to_device(tokens);
    auto kv = cache_for(backend, 1, 100, 26), whole_kv = cache_for(backend, 1, 100);
    gpu::prefill prefill;
    std::vector<std::pair<std::int32_t, std::int32_t>> passes;
    prefill.run(backend, kv, 0, {on_device.data(), nullptr, 43}, 0, 43, nullptr,
                [&](std::int32_t first, std::int32_t n) { passes.emplace_back(first, n); });
    CHECK(passes == std::vector<std::pair<std::int32_t, std::int32_t>>{{0, 13}, {13, 13}, {26, 13}, {39, 4}});
    rows_of(backend, whole_kv, chain_of(tokens, 0, 0));
    const auto tree = tree_of(llama_driver::random_tree(random, 9, 40), 0, 43);
    CHECK(rows_of(backend, kv, tree) == rows_of(backend, whole_kv, tree));
  }
}

TEST_CASE("A pass of a hybrid may be made again, and a text begins anew, but goes nowhere else") {
  const auto all_nan = [](const std::vector<row_type>& rows) {
    return std::all_of(rows.begin(), rows.end(), [](const row_type& row) {
      return std::all_of(row.begin(), row.end(), [](float x) { return std::isnan(x); });
    });
  };
  for (const recurrence_kind kind : kinds) {
    const random_hybrid hybrid(kind);
    auto backend = gpu::llama_backend<float>::load(hybrid.folder, {.max_rows = 40, .batch_invariant = true});
    auto kv = cache_for(backend, 1, 200, 24);
    std::mt19937 random(9);
    const auto tokens = llama_driver::random_tokens(random, 36, 40);
    const auto part = [&](std::size_t first, std::size_t n) {
      return chain_of(std::span(tokens).subspan(first, n), 0, static_cast<int>(first));
    };
    const auto first = rows_of(backend, kv, part(0, 12)), second = rows_of(backend, kv, part(12, 12));
    const auto third = rows_of(backend, kv, part(24, 12));
    CHECK(rows_of(backend, kv, part(24, 12)) == third);
    // The state has seen 24 tokens.
    CHECK(all_nan(rows_of(backend, kv, part(12, 12))));
    CHECK(rows_of(backend, kv, part(0, 12)) == first);
    // So long a pass overwrites rows that the state needs, and only a new beginning helps.
    CHECK(all_nan(rows_of(backend, kv, chain_of(llama_driver::random_tokens(random, 25, 40), 0, 12))));
    CHECK(all_nan(rows_of(backend, kv, part(12, 12))));
    CHECK(rows_of(backend, kv, part(0, 12)) == first);
    CHECK(rows_of(backend, kv, part(12, 12)) == second);
    // A row without a slot has no state.
    const forward_batch last = part(24, 3);
    const device_batch batch(last.view());
    gpu::forward_batch_view view = batch.view();
    const auto slots = to_device(std::vector<std::int32_t>{24, -1, 26});
    view.slots = slots.data();
    const auto rows = device_rows(backend.forward(kv, view, nullptr));
    CHECK(rows[0] == third[0]);
    CHECK(all_nan({rows[1]}));
  }
}

TEST_CASE("States of more numbers than threads of a warp are computed, up to 256") {
  for (const recurrence_kind kind : kinds) {
    for (const int state : {33, 100, 250}) {
      const random_hybrid hybrid(kind, 0, state);
      host_llama host(hybrid.folder, 1, 48);
      auto device = gpu::llama_backend<float>::load(hybrid.folder, {.max_rows = 40});
      auto kv = cache_for(device, 1, 48);
      std::mt19937 random(3);
      write_text(host, device, kv, random, 0, 0, 9);
      const forward_batch tree = one_tree(random, 40, 9, 12);
      INFO(state);
      CHECK(difference(rows_of(device, kv, tree), host.forward(tree.view())) < 1e-5);
    }
    const random_hybrid large(kind, 0, 257);
    CHECK(says(message_of<model_error>([&] { gpu::llama_backend<float>::load(large.folder); }),
               "has recurrent states of 257 numbers a channel", "computes at most 256", "the host's"));
  }
}

TEST_CASE("A cache that does not fit a hybrid is named") {
  auto backend = gpu::llama_backend<float>::load(path_of("bamba"), {.max_rows = 9});
  const model_config& config = backend.config();
  gpu::contiguous_kv<float> plain(config.n_attention_layers(), config.kv_size(), 1, 16);
  CHECK(says(message_of<input_error>([&] { backend.forward(plain, gpu::forward_batch_view{}, nullptr); }),
             "recurrent layers, but the cache keeps keys and values alone", "such as recurrent_kv"));
  recurrent_shape other = config.recurrent_shape();
  other.state_size += 16;
  gpu::recurrent_kv<float> wrong(config.n_attention_layers(), config.kv_size(), other, 1, 16);
  CHECK(says(message_of<input_error>([&] { backend.forward(wrong, gpu::forward_batch_view{}, nullptr); }),
             "the cache keeps states of", "but the model has"));
  auto few = cache_for(backend, 1, 64, 16);
  CHECK(message_of<option_error>([&] {
          gpu::make_decoder(gpu::prompt_lookup(), gpu::chain({.length = 8}), greedy(), few, backend);
        }) == "option rows is 16, but passes of 9 tokens need 18: a recurrent state may be one pass behind.");
}

TEST_CASE("Greedy texts of a hybrid are those of plain decoding, whatever drafts and grows") {
  const recurrence_kind kind = GENERATE(recurrence_kind::mamba2, recurrence_kind::gated_delta);
  const random_hybrid hybrid(kind), noisy(kind, 0.2F);
  auto target = gpu::llama_backend<float>::load(hybrid.folder, {.max_rows = 33, .batch_invariant = true});
  auto draft = gpu::llama_backend<float>::load(noisy.folder, {.max_rows = 40});
  int n_drafted = 0;  // texts of fewer rounds than tokens
  const auto written = [&](auto drafter, auto policy, int n) {
    auto kv = cache_for(target, 1, 200, 66);
    auto decode = gpu::make_decoder(std::move(drafter), std::move(policy), greedy(), kv, target);
    std::vector<std::vector<token_id>> texts;
    for (const std::size_t length : {5U, 70U}) {
      std::vector<token_id> prompt(length);
      for (std::size_t i = 0; i < length; ++i)
        prompt[i] = static_cast<token_id>(i * i % 37);
      const auto text = decode.generate(prompt, {.max_tokens = n});
      texts.emplace_back(text.begin(), text.end());
      if (decode.current().round() < n) ++n_drafted;
    }
    // The next turn of a dialogue.
    decode.resume(std::vector<token_id>{7, 11}, {.max_tokens = n});
    while (decode.step()) {
    }
    const auto all = decode.current().tokens();
    texts.emplace_back(all.begin(), all.end());
    return texts;
  };
  const auto expected = written(gpu::no_drafter(), gpu::plain(), 20);
  {
    host_llama host(hybrid.folder, 1, 200);
    forward_batch whole;
    const std::vector<token_id>& text = expected.back();
    whole.begin_sequence(0, 0, static_cast<std::int32_t>(text.size()));
    llama_driver::add_whole_chain(whole, text, 0);
    const auto rows = host.forward(whole.view());
    for (std::size_t i = text.size() - 20; i < text.size(); ++i)
      CHECK(std::max_element(rows[i - 1].begin(), rows[i - 1].end()) - rows[i - 1].begin() == text[i]);
  }
  n_drafted = 0;
  auto draft_kv = cache_for(draft, 1, 200, 84);
  CHECK(written(gpu::autoregressive(draft, draft_kv), gpu::chain({.length = 4}), 20) == expected);
  CHECK(written(gpu::autoregressive(draft, draft_kv), gpu::best_first({.budget = 8, .max_depth = 4}), 20) == expected);
  CHECK(written(gpu::autoregressive(draft, draft_kv), gpu::dynatree({.budget = 12}), 20) == expected);
  CHECK(n_drafted == 6);
}

TEST_CASE("Several texts of a hybrid are written in one pass on the device, each with its own state") {
  const recurrence_kind kind = GENERATE(recurrence_kind::mamba2, recurrence_kind::gated_delta);
  const random_hybrid hybrid(kind), noisy(kind, 0.2F);
  auto target = gpu::llama_backend<float>::load(hybrid.folder, {.max_rows = 80, .batch_invariant = true});
  auto draft = gpu::llama_backend<float>::load(noisy.folder, {.max_rows = 40});
  auto kv = cache_for(target, 3, 200, 60), draft_kv = cache_for(draft, 3, 200, 60),
       plain_kv = cache_for(target, 1, 200);
  auto plain = gpu::make_decoder(gpu::no_drafter(), gpu::plain(), greedy(), plain_kv, target);
  auto decode = gpu::make_batch_decoder(gpu::autoregressive(draft, draft_kv), gpu::dynatree({.budget = 8}), greedy(),
                                        kv, target, {.max_texts = 3, .prefill_rows = 50});
  std::map<text_id, std::vector<token_id>> expected;
  for (const int n : {5, 100, 1, 9}) {
    std::vector<token_id> prompt;
    for (int i = 0; i < n; ++i)
      prompt.push_back((7 * i + i * i) % 40);
    const auto text = plain.generate(prompt, {.max_tokens = 12});
    expected[decode.add(prompt, {.max_tokens = 12})] = {text.begin(), text.end()};
  }
  std::map<text_id, std::vector<token_id>> found;
  while (!decode.idle()) {
    for (const text_event& e : decode.step()) {
      REQUIRE_FALSE(e.error);
      found[e.id].insert(found[e.id].end(), e.round.committed.begin(), e.round.committed.end());
    }
  }
  CHECK(found == expected);
}
