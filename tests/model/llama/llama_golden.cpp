// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "llama_driver.hpp"

// The references were computed in float64 by transformers from the very weights in the folders.

namespace {

using namespace espalier;
using llama_driver::row_type;

constexpr double tolerance = 1e-5;

// Folders, and GGUF files beside them with the same weights.
const std::vector<std::string> models = {"llama",
                                         "llama_tied",
                                         "llama_f16",
                                         "llama_bf16",
                                         "llama_int8_rows",
                                         "llama3",
                                         "mistral",
                                         "qwen2",
                                         "qwen3",
                                         "gemma",
                                         "gemma2",
                                         "gemma3",
                                         "gpt_neox",
                                         "gpt_neox_sequential",
                                         "bamba",
                                         "mixtral",
                                         "qwen3_moe",
                                         "qwen3_moe_plain",
                                         "qwen3_next",
                                         "qwen3_next_plain",
                                         "qwen3_5",
                                         "qwen3_5_moe",
                                         "gpt_oss",
                                         "gpt_oss_mxfp4",
                                         "phi3",
                                         "phi4_mini",
                                         "olmo2",
                                         "olmo3",
                                         "granite",
                                         "smollm3",
                                         "glm4",
                                         "llama_f16/model.gguf",
                                         "llama3/model.gguf",
                                         "mistral/model.gguf",
                                         "qwen2/model.gguf",
                                         "qwen3/model.gguf",
                                         "gemma/model.gguf",
                                         "gemma3/model.gguf",
                                         "gpt_neox/model.gguf",
                                         "mixtral/model.gguf",
                                         "qwen3_moe/model.gguf",
                                         "qwen3_next/model.gguf",
                                         "qwen3_5/model.gguf",
                                         "qwen3_5_moe/model.gguf",
                                         "gpt_oss/model.gguf",
                                         "phi3/model.gguf",
                                         "phi4_mini/model.gguf",
                                         "olmo2/model.gguf",
                                         "olmo3/model.gguf",
                                         "granite/model.gguf",
                                         "smollm3/model.gguf",
                                         "glm4/model.gguf"};

std::string path_of(const std::string& model) {
  return std::string(ESPALIER_TEST_DATA) + "/golden/" + model;
}

nlohmann::json golden_of(const std::string& model) {
  std::ifstream file(path_of(model.substr(0, model.find('/'))) + "/golden.json");
  REQUIRE(file.good());
  return nlohmann::json::parse(file);
}

// Largest difference as a share of the largest expected number.
double relative_error(const std::vector<row_type>& found, const std::vector<std::vector<double>>& expected) {
  REQUIRE(found.size() == expected.size());
  double difference = 0.0, largest = 0.0;
  for (std::size_t r = 0; r < found.size(); ++r) {
    REQUIRE(found[r].size() == expected[r].size());
    for (std::size_t i = 0; i < found[r].size(); ++i) {
      REQUIRE(std::isfinite(found[r][i]));
      difference = std::max(difference, std::abs(static_cast<double>(found[r][i]) - expected[r][i]));
      largest = std::max(largest, std::abs(expected[r][i]));
    }
  }
  return difference / largest;
}

}  // namespace

TEST_CASE("logits and hidden states of every family agree with transformers") {
  for (const std::string& model : models) {
    INFO(model);
    const nlohmann::json golden = golden_of(model);
    const auto tokens = golden["tokens"].get<std::vector<token_id>>();
    auto backend = llama_backend::load(path_of(model), {.hidden_layers = {0, 1}});
    REQUIRE(backend.vocab_size() == static_cast<int>(golden["logits"][0].size()));
    auto kv = llama_driver::cache_for(backend, 64);
    forward_batch batch;
    kv.append(0, static_cast<int>(tokens.size()));
    batch.begin_sequence(0, 0, static_cast<int>(tokens.size()));
    llama_driver::add_whole_chain(batch, tokens, 0);
    const auto rows = llama_driver::rows_of(backend.forward(kv, batch.view()));
    CHECK(relative_error(rows, golden["logits"]) < tolerance);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      CHECK(std::max_element(rows[i].begin(), rows[i].end()) - rows[i].begin() == golden["argmax"][i].get<int>());
    }
    for (int layer = 0; layer < 2; ++layer) {
      std::vector<row_type> states;
      for (int row = 0; row < static_cast<int>(tokens.size()); ++row) {
        const auto state = backend.hidden(layer, row);
        states.emplace_back(state.begin(), state.end());
      }
      CHECK(relative_error(states, golden["hidden_states"][static_cast<std::size_t>(layer)]) < tolerance);
    }
  }
}

TEST_CASE("the rows of a tree agree with transformers on each path alone") {
  for (const std::string& model : models) {
    INFO(model);
    const nlohmann::json golden = golden_of(model);
    const llama_driver::tree tree{golden["tree"]["tokens"], golden["tree"]["parents"]};
    const auto prefix = golden["tree"]["prefix"].get<std::vector<token_id>>();
    const auto n = static_cast<int>(tree.tokens.size());
    auto backend = llama_backend::load(path_of(model));
    auto kv = llama_driver::cache_for(backend, 32);
    llama_driver::plainly(backend, kv, prefix);
    forward_batch batch;
    kv.append(0, n);
    batch.begin_sequence(0, kv.size(0), n);
    llama_driver::add_tree(batch, tree, kv.size(0));
    CHECK(relative_error(llama_driver::rows_of(backend.forward(kv, batch.view())), golden["tree"]["logits"]) <
          tolerance);
  }
}

TEST_CASE("two sequences in one ragged batch agree with transformers") {
  for (const std::string& model : models) {
    INFO(model);
    const nlohmann::json golden = golden_of(model);
    const llama_driver::tree tree{golden["tree"]["tokens"], golden["tree"]["parents"]};
    const auto prefix = golden["tree"]["prefix"].get<std::vector<token_id>>();
    const auto tokens = golden["tokens"].get<std::vector<token_id>>();
    const auto n_tokens = static_cast<int>(tokens.size()), n_nodes = static_cast<int>(tree.tokens.size());
    auto backend = llama_backend::load(path_of(model));
    auto kv = llama_driver::cache_for(backend, 32, 2);
    llama_driver::plainly(backend, kv, prefix, 1);
    forward_batch batch;
    kv.append(0, n_tokens);
    batch.begin_sequence(0, 0, n_tokens);
    llama_driver::add_whole_chain(batch, tokens, 0);
    kv.append(1, n_nodes);
    batch.begin_sequence(1, kv.size(1), n_nodes);
    llama_driver::add_tree(batch, tree, kv.size(1));
    const auto rows = llama_driver::rows_of(backend.forward(kv, batch.view()));
    CHECK(relative_error({rows.begin(), rows.begin() + n_tokens}, golden["logits"]) < tolerance);
    CHECK(relative_error({rows.begin() + n_tokens, rows.end()}, golden["tree"]["logits"]) < tolerance);
  }
}
