// SPDX-License-Identifier: BSL-1.0
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/model/files/rounded_row.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "llama_driver.hpp"
#include "model_writer.hpp"
#include "raises.hpp"
#include "vectors.hpp"

namespace {

using namespace espalier;
using llama_driver::row_type;

constexpr auto integer = matrix_arithmetic::integer;
const std::vector<token_id> tokens = {5, 17, 101, 3, 99, 202, 0, 64, 33, 12, 7, 150};

// Matrices of 128 inputs, which blocks divide, and of 150, which they do not.
model_config config(bool tied = true) {
  model_config c = model_writer::wide_config();
  c.hidden_size = 128;
  c.tied_embeddings = tied;
  return c;
}

// Returns config() with a mixture of experts in the second layer, whose matrices have 128 and 70 inputs, and with a
// shared expert.
model_config config_of_mixture() {
  model_config c = config();
  c.mixture = {.experts = 6, .used = 2, .size = 70, .shared_size = 45};
  c.mixtures = {false, true};
  return c;
}

llama_backend backend_of(const model_writer::file_text& file, const llama_options& options, const model_config& c) {
  auto opened = model_writer::open(file.text());
  return {c, model_weights::load(c, opened, storage_for(options.arithmetic, options.weights)), options};
}
llama_backend backend_of(const model_writer::file_text& file, const llama_options& options, bool tied = true) {
  return backend_of(file, options, config(tied));
}

// One pass over all tokens.
std::vector<row_type> together(llama_backend& backend, const std::vector<token_id>& text) {
  auto kv = llama_driver::cache_for(backend, 256);
  forward_batch batch;
  batch.begin_sequence(0, 0, static_cast<std::int32_t>(text.size()));
  kv.append(0, static_cast<std::int32_t>(text.size()));
  batch.add_chain(text, 0, static_cast<std::int32_t>(text.size()));
  return llama_driver::rows_of(backend.forward(kv, batch.view()));
}

bool same_bits(const std::vector<row_type>& a, const std::vector<row_type>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const row_type& x, const row_type& y) {
    return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof(float)) == 0;
  });
}

// Returns a model with its matrices as floats that were rounded. An embedding that nobody multiplies does not become
// bytes; a router is not rounded, and neither is the row that gives the gate of a shared expert.
model_writer::file_text rounded(const model_writer::file_text& file, weight_storage storage, bool tied) {
  model_writer::file_text result = file;
  rounded_row round;
  for (const auto& [name, entry] : file.header.items()) {
    const std::vector<int> shape = entry["shape"];
    if (shape.size() != 2) continue;
    if (!tied && storage == weight_storage::i8_rows && name == "model.embed_tokens.weight") continue;
    if (name.ends_with("gate.weight")) continue;
    const weight_type type = held_type(weight_type::f32, shape[1], storage);
    if (type == weight_type::f32) continue;
    std::vector<float> values(static_cast<std::size_t>(shape[1]));
    for (int row = 0; row < shape[0]; ++row) {
      char* at = result.data.data() + entry["data_offsets"][0].get<std::size_t>() +
                 static_cast<std::size_t>(row) * values.size() * sizeof(float);
      std::memcpy(values.data(), at, values.size() * sizeof(float));
      round(weight_row::of(values.data(), shape[1]), type).decode(values.data());
      std::memcpy(at, values.data(), values.size() * sizeof(float));
    }
  }
  return result;
}

double log_sum(const row_type& row) {
  const float most = *std::max_element(row.begin(), row.end());
  double sum = 0.0;
  for (const float logit : row)
    sum += std::exp(static_cast<double>(logit) - static_cast<double>(most));
  return std::log(sum) + static_cast<double>(most);
}

}  // namespace

TEST_CASE("the exact form of a rounded model is bitwise the model of its weights as floats") {
  for (const model_config& c : {config(true), config(false), config_of_mixture()}) {
    const bool tied = c.tied_embeddings;
    const auto file = model_writer::random_llama(c, 4);
    for (const weight_storage storage :
         {weight_storage::bf16, weight_storage::q8_0, weight_storage::q4_0, weight_storage::i8_rows}) {
      INFO(name_of(storage) << (tied ? ", tied" : ", not tied") << (c.has_mixtures() ? ", experts" : ""));
      llama_backend held = backend_of(file, {.weights = storage}, c),
                    floats = backend_of(rounded(file, storage, tied), {.weights = weight_storage::as_stored}, c);
      CHECK(held.weight_bytes() < floats.weight_bytes());
      const auto expected = together(floats, tokens);
      CHECK(same_bits(together(held, tokens), expected));
      auto kv = llama_driver::cache_for(held, 256);
      CHECK(same_bits(llama_driver::plainly(held, kv, tokens), expected));
    }
  }
}

TEST_CASE("a row of the integer form has the same bits alone, among others, and with any number of threads") {
  for (const model_config& c : {config(), config_of_mixture()}) {
    const auto file = model_writer::random_llama(c, 4);
    llama_backend one = backend_of(file, {.threads = 1, .arithmetic = integer}, c);
    llama_backend exact = backend_of(file, {.threads = 1, .weights = weight_storage::i8_rows}, c);
    auto kv = llama_driver::cache_for(one, 256);
    const auto expected = llama_driver::plainly(one, kv, tokens);
    CHECK(same_bits(together(one, tokens), expected));
    CHECK_FALSE(same_bits(together(exact, tokens), expected));
    for (const int threads : {2, 3}) {
      llama_backend several = backend_of(file, {.threads = threads, .arithmetic = integer}, c);
      CHECK(same_bits(together(several, tokens), expected));
    }
  }
}

TEST_CASE("products of integers need weights in bytes, and say so") {
  const auto file = model_writer::random_llama(config(), 4);
  CHECK(message_of<option_error>([&] {
          backend_of(file, {.threads = 1, .arithmetic = integer, .weights = weight_storage::q4_0});
        }) == "option weights is q4-0, but must be as-stored, fastest or i8-rows where arithmetic is integer.");
  llama_backend floats = backend_of(file, {.threads = 1, .weights = weight_storage::as_stored});
  CHECK(message_of<option_error>(
            [&] { llama_backend(config(), floats.weights(), {.threads = 1, .arithmetic = integer}); }) ==
        "option arithmetic is integer, but these weights were loaded for exact products: load them with "
        "weight_storage::i8_rows.");
}

TEST_CASE("weights are held in the bytes of their type") {
  const std::string target = std::string(ESPALIER_TEST_MODELS) + "/target";
  llama_backend held = llama_backend::load(target, {.threads = 1, .weights = weight_storage::as_stored}),
                floats = llama_backend::load(target, {.threads = 1, .weights = weight_storage::f32});
  CHECK(held.weight_bytes() < 14'000'000);  // 13 million weights of int8
  CHECK(floats.weight_bytes() > 51'000'000);
  CHECK(same_bits(together(held, tokens), together(floats, tokens)));
}

TEST_CASE("the integer form loses little of what the target knows") {
  const std::string target = std::string(ESPALIER_TEST_MODELS) + "/target";
  llama_backend exact = llama_backend::load(target), rounded = llama_backend::load(target, {.arithmetic = integer});
  double loss = 0.0, divergence = 0.0;
  int n = 0;
  // Prompts that the model was not trained on.
  for (const std::vector<token_id> text : load_vectors("prompt_tokens.json")) {
    const auto p = together(exact, text), q = together(rounded, text);
    for (std::size_t i = 0; i + 1 < text.size(); ++i, ++n) {
      const double p_sum = log_sum(p[i]), q_sum = log_sum(q[i]);
      const auto next = static_cast<std::size_t>(text[i + 1]);
      loss += (static_cast<double>(p[i][next]) - p_sum) - (static_cast<double>(q[i][next]) - q_sum);
      for (std::size_t t = 0; t < p[i].size(); ++t) {
        const double log_p = static_cast<double>(p[i][t]) - p_sum, log_q = static_cast<double>(q[i][t]) - q_sum;
        divergence += std::exp(log_p) * (log_p - log_q);
      }
    }
  }
  INFO(n << " tokens: loss " << loss / n << " nats more, divergence " << divergence / n);
  CHECK(n > 300);
  CHECK(loss / n < 0.005);
  CHECK(divergence / n < 0.005);
  CHECK(divergence / n > 0.0);
}
