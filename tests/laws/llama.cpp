// SPDX-License-Identifier: BSL-1.0
// The laws, and a whole decoder, over the host transformer on tiny random models.
#include "espalier/model/llama/llama_backend.hpp"

#include <initializer_list>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/no_drafter.hpp"
#include "espalier/kv_store/recurrent.hpp"
#include "espalier/testing/backend_laws.hpp"
#include "espalier/testing/step_drafter_laws.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/dynatree.hpp"
#include "espalier/tree_policy/fixed.hpp"
#include "espalier/tree_policy/plain.hpp"
#include "espalier/verifier/greedy.hpp"
#include "model/llama/hybrid_tensors.hpp"
#include "model/llama/model_writer.hpp"

using namespace espalier;

namespace {

llama_backend golden(const std::string& name) {
  return llama_backend::load(std::string(ESPALIER_TEST_DATA) + "/golden/" + name, {.threads = 1, .max_rows = 64});
}

recurrent_kv cache_for(const llama_backend& model, int n_sequences, commit_mode mode) {
  return host_cache(model.config(), n_sequences, 64, {.commit = mode});
}

llama_backend random_hybrid(recurrence_kind kind, float noise) {
  const model_config config =
      model_config::parse(hybrid_tensors::config_text(40, 32, 3, 4, 2, 48, 4, 24, 64, kind), "config.json");
  return model_writer::backend(config, model_writer::random_hybrid(config, 1, noise), {.threads = 1, .max_rows = 64});
}

std::vector<float> read_row(recurrent_kv& kv, std::int32_t s, std::int32_t slot) {
  std::vector<float> row;
  for (int layer = 0; layer < kv.n_layers(); ++layer) {
    row.insert(row.end(), kv.key(layer, s, slot), kv.key(layer, s, slot) + kv.row_size());
    row.insert(row.end(), kv.value(layer, s, slot), kv.value(layer, s, slot) + kv.row_size());
  }
  for (int layer = 0; layer < kv.shape().layers; ++layer)
    row.insert(row.end(), kv.kept_row(layer, s, slot), kv.kept_row(layer, s, slot) + kv.shape().row_size);
  return row;
}

constexpr commit_mode modes[] = {commit_mode::compact, commit_mode::truncate};

}  // namespace

TEST_CASE("Backend laws: llama_backend, bitwise, models of many families, both commit modes") {
  for (const char* name : {"llama", "qwen3", "gpt_neox", "llama_int8_rows", "bamba", "phi3", "olmo3", "glm4",
                           "qwen3_moe", "gpt_oss", "qwen3_next", "qwen3_5"}) {
    INFO(name);
    llama_backend model = golden(name);
    for (const commit_mode mode : modes)
      testing::check_backend(
          model, [&](std::int32_t n) { return cache_for(model, n, mode); }, read_row);
  }
}

TEST_CASE("Drafter laws: autoregressive over llama_backend, bitwise") {
  for (const char* name : {"llama", "bamba", "qwen3_next"}) {
    llama_backend model = golden(name);
    const sampling_options sampling{.temperature = 1};
    // What a pass over the whole text gives, through the drafter's sampler.
    const auto expected = [&](const std::vector<token_id>& text) {
      recurrent_kv kv = cache_for(model, 1, commit_mode::compact);
      const auto n = static_cast<std::int32_t>(text.size());
      forward_batch batch;
      batch.begin_sequence(0, 0, n);
      batch.add_chain(text, 0, 1);
      kv.append(0, n);
      std::vector<float> row(static_cast<std::size_t>(model.vocab_size()));
      sampler(sampling).probabilities(model.forward(kv, batch.view()).row(0), row, 0);
      return row;
    };
    // The expected rows come from the same object, so the drafter has a model of its own.
    llama_backend draft = golden(name);
    for (const commit_mode mode : modes) {
      const auto make = [&] { return autoregressive(draft, cache_for(draft, 1, mode), sampling); };
      testing::check_step_drafter(make, expected);
    }
  }
}

namespace {

// Every way of drafting writes what the target alone does, up to a full context.
void require_plain_text(llama_backend& target, std::initializer_list<llama_backend*> drafts) {
  const std::vector<token_id> prompt{1, 7, 3, 9, 2};
  const std::vector<token_id> expected = [&] {
    auto decode = make_decoder(no_drafter(), plain(), greedy(), cache_for(target, 1, commit_mode::compact), target);
    const auto written = decode.generate(prompt);
    return std::vector<token_id>(written.begin(), written.end());
  }();
  REQUIRE(expected.size() == 64 - prompt.size());
  const auto require_equal = [&](llama_backend& drafting, auto policy) {
    for (const commit_mode target_mode : modes) {
      for (const commit_mode draft_mode : modes) {
        for (const node_order order : {node_order::insertion, node_order::depth_first, node_order::heavy_path}) {
          autoregressive drafter(drafting, cache_for(drafting, 1, draft_mode));
          auto decode =
              make_decoder(drafter, policy, greedy(), cache_for(target, 1, target_mode), target, {.order = order});
          const auto written = decode.generate(prompt);
          REQUIRE(std::vector<token_id>(written.begin(), written.end()) == expected);
        }
      }
    }
  };
  for (llama_backend* drafting : drafts) {
    require_equal(*drafting, chain());
    require_equal(*drafting, fixed({.depth = 3, .breadth = 3, .budget = 30}));
    require_equal(*drafting, dynatree({.budget = 40}));
    dynatree_options first = dynatree_options::first_paper();
    first.budget = 50;
    require_equal(*drafting, dynatree(first));
  }
}

}  // namespace

TEST_CASE("greedy text over llama_backend equals plain decoding, up to a full context") {
  llama_backend target = golden("llama"), draft = golden("llama_f16"), other = golden("llama_tied");
  require_plain_text(target, {&draft, &other});
}

TEST_CASE("greedy text of a hybrid equals plain decoding, with a hybrid as the draft, and with a model of attention") {
  const recurrence_kind kind = GENERATE(recurrence_kind::mamba2, recurrence_kind::gated_delta);
  llama_backend target = random_hybrid(kind, 0), same = random_hybrid(kind, 0), other = random_hybrid(kind, 0.2F);
  llama_backend attention = golden("qwen2");
  require_plain_text(target, {&same, &other, &attention});
  llama_backend second = golden("mistral");
  require_plain_text(second, {&target});
}
