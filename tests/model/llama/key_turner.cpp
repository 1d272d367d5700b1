// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/key_turner.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/core/forward_batch.hpp"
#include "espalier/kv_store/contiguous.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "model/llama/batch_writer.hpp"

using namespace espalier;

namespace {

constexpr int n_tokens = 12;

// A store with the rows of these tokens, the first at this position.
contiguous_kv rows_at(llama_backend& model, const std::vector<token_id>& tokens, int position) {
  contiguous_kv kv(model.config().n_layers, model.config().kv_size(), 1, n_tokens);
  forward_batch batch;
  kv.append(0, n_tokens);
  batch.begin_sequence(0, 0, n_tokens);
  batch.add_chain(tokens, position, 1);
  model.forward(kv, batch.view());
  return kv;
}

// The largest difference of two rows, as a part of the largest number in them.
float difference(const float* a, const float* b, int n) {
  float most = 0, largest = 0;
  for (int i = 0; i < n; ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return most / largest;
}

}  // namespace

TEST_CASE("a turned key is the one that the model computes at the other position") {
  for (const char* name : {"llama", "llama3", "qwen2", "qwen3", "gemma3", "gpt_neox", "phi3", "smollm3", "glm4"}) {
    llama_backend model =
        llama_backend::load(std::string(ESPALIER_TEST_DATA) + "/golden/" + name, {.threads = 1, .max_rows = 64});
    std::mt19937 random(3);
    const auto tokens = llama_driver::random_tokens(random, n_tokens, model.vocab_size());
    const int last = std::min(model.max_positions(), 64) - n_tokens, row_size = model.config().kv_size();
    contiguous_kv expected = rows_at(model, tokens, 0);
    for (const int n : {1, 7, last}) {
      // In one turn, and in as many as a window of several blocks takes.
      for (const int n_turns : {1, 5}) {
        contiguous_kv turned = rows_at(model, tokens, n);
        key_turner turn(model.config());
        for (int layer = 0; layer < model.config().n_layers; ++layer) {
          for (int slot = 0; slot < n_tokens; ++slot) {
            const std::span key(turned.key(layer, 0, slot), static_cast<std::size_t>(row_size));
            for (int i = 0; i < n_turns; ++i)
              turn(layer, key, n / n_turns + (i < n % n_turns ? 1 : 0));
            INFO(name << ", layer " << layer << ", position " << n + slot << " to " << slot << " in " << n_turns);
            REQUIRE(difference(key.data(), expected.key(layer, 0, slot), row_size) < 1e-5F);
            REQUIRE(difference(turned.value(layer, 0, slot), expected.value(layer, 0, slot), row_size) < 1e-5F);
          }
        }
      }
    }
  }
}

TEST_CASE("dimensions that the model does not turn stay") {
  model_config config;
  config.head_dim = 6;
  config.rotary_dims = 2;
  key_turner turn(config);
  std::vector<float> key{1, 0, 3, 4, 5, 6, 0, 2, 7, 8, 9, 10};
  const auto is = [&](const std::vector<double>& expected) {
    for (std::size_t i = 0; i < key.size(); ++i)
      CHECK(static_cast<double>(key[i]) == Approx(expected[i]).margin(1e-6));
  };
  turn(0, key, 0);
  is({1, 0, 3, 4, 5, 6, 0, 2, 7, 8, 9, 10});
  turn(0, key, 2);
  is({std::cos(2), -std::sin(2), 3, 4, 5, 6, 2 * std::sin(2), 2 * std::cos(2), 7, 8, 9, 10});
  turn(0, key, -2);
  is({1, 0, 3, 4, 5, 6, 0, 2, 7, 8, 9, 10});
}
