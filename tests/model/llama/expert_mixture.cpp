// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/expert_mixture.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "allocations.hpp"
#include "catch.hpp"
#include "espalier/model/llama/llama_backend.hpp"
#include "llama_driver.hpp"
#include "model/files/gguf_writer.hpp"
#include "model_writer.hpp"
#include "raises.hpp"

namespace {

using namespace espalier;
using llama_driver::row_type;

// What a row uses: experts, ascending, and their factors.
struct used_experts {
  std::vector<int> experts;
  std::vector<float> factors;
};

std::vector<used_experts> chosen_by(const mixture_shape& shape, const std::vector<std::vector<float>>& routed) {
  std::vector<float> all;
  for (const auto& row : routed)
    all.insert(all.end(), row.begin(), row.end());
  detail::expert_choice choice(shape, static_cast<int>(routed.size()));
  for (int again = 0; again < 2; ++again)  // what an earlier batch has chosen is forgotten
    choice.choose(all.data(), static_cast<int>(routed.size()));
  std::vector<used_experts> found(routed.size());
  int before = -1, uses = 0;
  for (const auto& group : choice.groups()) {
    CHECK(group.expert > before);
    CHECK(group.begin == uses);
    before = group.expert, uses = group.end;
    std::int32_t row_before = -1;
    for (const auto& use : choice.uses_of(group)) {
      CHECK(use.row > row_before);
      row_before = use.row;
      found[static_cast<std::size_t>(use.row)].experts.push_back(group.expert);
      found[static_cast<std::size_t>(use.row)].factors.push_back(use.factor);
    }
  }
  return found;
}

// The first layer has an MLP, the second and the third a mixture. Matrices of experts have 70 outputs, which granules
// do not divide.
model_config config_of_mixture() {
  model_config config = model_writer::wide_config();
  config.n_layers = 3;
  config.hidden_size = 128;
  config.mixture = {.experts = 12, .used = 3, .size = 70};
  config.mixtures = {false, true, true};
  return config;
}

llama_backend backend_of(int threads, matrix_arithmetic arithmetic) {
  const model_config config = config_of_mixture();
  auto file = model_writer::open(model_writer::random_llama(config, 11).text());
  return {config, model_weights::load(config, file, storage_for(arithmetic, weight_storage::as_stored)),
          llama_options{.threads = threads, .arithmetic = arithmetic}};
}

// One pass over all tokens: 60 rows use an expert 15 times on average.
std::vector<row_type> together(llama_backend& backend, const std::vector<token_id>& text) {
  auto kv = llama_driver::cache_for(backend, 64);
  forward_batch batch;
  kv.append(0, static_cast<int>(text.size()));
  batch.begin_sequence(0, 0, static_cast<int>(text.size()));
  llama_driver::add_whole_chain(batch, text, 0);
  return llama_driver::rows_of(backend.forward(kv, batch.view()));
}

std::string golden(const std::string& model) {
  return std::string(ESPALIER_TEST_DATA) + "/golden/" + model;
}

}  // namespace

TEST_CASE("a row uses the experts with the greatest numbers, by their softmax") {
  const float e = std::exp(1.0F);
  const auto found = chosen_by({.experts = 4, .used = 2, .size = 1, .sums_to_one = false},
                               {{0, 2, 1, -100}, {3, -100, -100, 4}, {0, 2, 1, -100}});
  REQUIRE(found.size() == 3);
  CHECK(found[0].experts == std::vector<int>{1, 2});
  CHECK(found[1].experts == std::vector<int>{0, 3});
  CHECK(found[0].factors[0] == Approx(e * e / (1 + e + e * e)));
  CHECK(found[0].factors[1] == Approx(e / (1 + e + e * e)));
  CHECK(found[1].factors[0] == Approx(1 / (1 + e)));
  CHECK(found[2].experts == found[0].experts);
  CHECK(found[2].factors == found[0].factors);
  const auto whole = chosen_by({.experts = 4, .used = 2, .size = 1}, {{0, 2, 1, -100}});
  CHECK(whole[0].factors[0] == Approx(e / (1 + e)));
  CHECK(whole[0].factors[1] == Approx(1 / (1 + e)));
}

TEST_CASE("of experts with equal numbers, a row uses those with the lower index") {
  const mixture_shape shape{.experts = 5, .used = 2, .size = 1};
  CHECK(chosen_by(shape, {{7, 7, 7, 7, 7}})[0].experts == std::vector<int>{0, 1});
  CHECK(chosen_by(shape, {{1, 2, 1, 3, 2}})[0].experts == std::vector<int>{1, 3});
  CHECK(chosen_by(shape, {{1, 2, 1, 2, 2}})[0].experts == std::vector<int>{1, 3});
  CHECK(chosen_by(shape, {{7, 7, 7, 7, 7}})[0].factors == std::vector<float>{0.5F, 0.5F});
  const float none = -std::numeric_limits<float>::infinity();
  CHECK(chosen_by(shape, {{none, none, none, 0, none}})[0].experts == std::vector<int>{0, 3});
  CHECK(chosen_by(shape, {{none, none, none, 0, none}})[0].factors == std::vector<float>{0.0F, 1.0F});
}

TEST_CASE("a number that is NaN makes all factors of its row NaN, and no other row's") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (std::size_t at = 0; at < 5; ++at) {
    std::vector<std::vector<float>> routed(3, {1, 2, 3, 4, 5});
    routed[1][at] = nan;
    const auto found = chosen_by({.experts = 5, .used = 2, .size = 1}, routed);
    CHECK(found[1].experts.size() == 2);
    CHECK(std::isnan(found[1].factors[0]));
    CHECK(std::isnan(found[1].factors[1]));
    for (const std::size_t other : {std::size_t{0}, std::size_t{2}})
      CHECK(found[other].factors[0] + found[other].factors[1] == Approx(1.0F));
  }
}

TEST_CASE("a row of a mixture has the same bits alone, among others, and with any number of threads") {
  std::mt19937 random(12);
  const auto tokens = llama_driver::random_tokens(random, 60, model_writer::wide_config().vocab_size);
  for (const matrix_arithmetic arithmetic : {matrix_arithmetic::exact, matrix_arithmetic::integer}) {
    INFO(name_of(arithmetic));
    llama_backend one = backend_of(1, arithmetic);
    auto kv = llama_driver::cache_for(one, 64);
    const auto expected = llama_driver::plainly(one, kv, tokens);
    CHECK(together(one, tokens) == expected);
    for (const int threads : {2, 3}) {
      llama_backend several = backend_of(threads, arithmetic);
      auto several_kv = llama_driver::cache_for(several, 64);
      CHECK(together(several, tokens) == expected);
      CHECK(llama_driver::plainly(several, several_kv, std::span(tokens).first(9)) ==
            std::vector<row_type>(expected.begin(), expected.begin() + 9));
    }
  }
}

TEST_CASE("a pass over a mixture does not allocate, whatever experts its rows use") {
  std::mt19937 random(13);
  for (const matrix_arithmetic arithmetic : {matrix_arithmetic::exact, matrix_arithmetic::integer}) {
    llama_backend backend = backend_of(2, arithmetic);
    auto kv = llama_driver::cache_for(backend, 64);
    std::int64_t allocations = 0;
    int passes = 0;
    for (const int rows : {1, 60, 8, 9, 1}) {
      const auto tokens = llama_driver::random_tokens(random, rows, backend.vocab_size());
      forward_batch batch;
      kv.append(0, rows);
      batch.begin_sequence(0, 0, rows);
      llama_driver::add_whole_chain(batch, tokens, 0);
      const forward_batch_view view = batch.view();
      const allocation_count count;
      backend.forward(kv, view);
      // The first pass over a cache takes memory for attention.
      if (passes++ > 0) allocations += count.so_far();
      kv.truncate(0, 0);
    }
    CHECK(allocations == 0);
  }
}

TEST_CASE("of an expert that no row uses nothing is read") {
  model_config config = config_of_mixture();
  config.mixtures = {false, true, false};
  model_writer::file_text file = model_writer::random_llama(config, 14);
  const auto bytes_of = [](model_writer::file_text& in, const std::string& name) {
    const std::size_t begin = in.header["model.layers.1.mlp." + name]["data_offsets"][0];
    return in.data.data() + begin;
  };
  // The router gives experts 0, 1, 2 and 5 equal numbers: no row uses 5, since one that uses three uses the others.
  char* router = bytes_of(file, "gate.weight");
  const std::size_t row = static_cast<std::size_t>(config.hidden_size) * sizeof(float);
  for (const std::size_t expert : {1U, 2U, 5U})
    std::memcpy(router + expert * row, router, row);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto broken = [&](const std::string& expert) {
    model_writer::file_text other = file;
    std::memcpy(bytes_of(other, "experts." + expert + ".down_proj.weight"), &nan, sizeof nan);
    return other;
  };
  std::mt19937 random(15);
  const auto tokens = llama_driver::random_tokens(random, 24, config.vocab_size);
  const auto rows_of = [&](const model_writer::file_text& text) {
    llama_backend backend = model_writer::backend(config, text, {.threads = 2});
    return together(backend, tokens);
  };
  const auto expected = rows_of(file);
  CHECK(rows_of(broken("5")) == expected);
  CHECK_FALSE(rows_of(broken("1")) == expected);
}

TEST_CASE("a tensor of a mixture that is missing, of another shape, or too many is named") {
  const model_config config = config_of_mixture();
  const auto load = [&](const model_writer::file_text& text) {
    auto file = model_writer::open(text.text());
    model_weights::load(config, file);
  };
  const std::string base = "model.layers.1.mlp.";
  for (const char* name : {"gate.weight", "experts.0.gate_proj.weight", "experts.11.down_proj.weight"}) {
    model_writer::file_text file = model_writer::random_llama(config, 16);
    file.header[base + name + "x"] = file.header[base + name];
    file.header.erase(base + name);
    CHECK(message_of<model_error>([&] { load(file); }) == "model.safetensors lacks tensor \"" + base + name + "\".");
  }
  model_writer::file_text file = model_writer::random_llama(config, 16);
  file.header[base + "experts.3.up_proj.weight"]["shape"] = {35, 256};
  CHECK(says(message_of<model_error>([&] { load(file); }), base + "experts.3.up_proj.weight\" has shape [35, 256], but",
             "makes it [70, 128]"));
  file = model_writer::random_llama(config, 16);
  file.add(base + "experts.12.up_proj.weight", {1}, {0});
  CHECK(says(message_of<model_error>([&] { load(file); }), base + "experts.12.up_proj.weight\" has no place"));
  file = model_writer::random_llama(config, 16);
  file.add(base + "shared_expert.up_proj.weight", {1}, {0});
  CHECK(says(message_of<model_error>([&] { load(file); }), base + "shared_expert.up_proj.weight\" has no place"));
}

TEST_CASE("a stack of experts of another shape, or of bytes, is refused by name") {
  const model_files files = model_files::open(golden("qwen3_moe/model.gguf"));
  model_config more = files.config;
  more.mixture.experts = 9;
  CHECK(says(message_of<model_error>([&] { model_weights::load(more, *files.tensors); }),
             "model.gguf: tensor \"blk.0.ffn_gate_inp.weight\" has shape [8, 16], but the metadata makes it [9, 16]"));
  model_config wider = files.config;
  wider.mixture.size = 24;
  CHECK(says(message_of<model_error>([&] { model_weights::load(wider, *files.tensors); }),
             "\"blk.0.ffn_gate_exps.weight\" has shape [8, 20, 16], but the metadata makes it [8, 24, 16]"));
  gguf_writer::file_text bytes;
  bytes.add_tensor("stack", 24, {2, 3, 4}, std::string(24, '\1'));
  gguf_file file = gguf_writer::open(bytes.text());
  detail::tensor_reader reader(file);
  CHECK(says(message_of<model_error>([&] {
               reader.matrix(
                   "stack", 3, 4, [](int, const weight_row&) {}, [](int) { return true; },
                   [](weight_type) {
                     return detail::column_range{0, 4};
                   },
                   detail::stack_place{1, 2});
             }),
             "tensor \"stack\" has dtype I8, but must be F32"));
}

TEST_CASE("a row of gpt-oss has the same bits alone and among others, in every form") {
  for (const char* model : {"gpt_oss", "gpt_oss_mxfp4"}) {
    for (const matrix_arithmetic arithmetic : {matrix_arithmetic::exact, matrix_arithmetic::integer}) {
      INFO(model << ", " << name_of(arithmetic));
      std::mt19937 random(17);
      llama_backend one = llama_backend::load(golden(model), {.threads = 1, .arithmetic = arithmetic}),
                    three = llama_backend::load(golden(model), {.threads = 3, .arithmetic = arithmetic});
      const auto tokens = llama_driver::random_tokens(random, 40, one.vocab_size());
      auto kv = llama_driver::cache_for(one, 64);
      const auto expected = llama_driver::plainly(one, kv, tokens);
      CHECK(together(one, tokens) == expected);
      CHECK(together(three, tokens) == expected);
    }
  }
}

TEST_CASE("tensors of MXFP4 that do not fit are named") {
  const auto message = [](const std::string& type, const std::vector<std::uint64_t>& codes, std::size_t bytes,
                          const std::vector<std::uint64_t>& exponents, std::size_t more_bytes) {
    model_writer::file_text text;
    text.add_bytes("w_blocks", type, codes, std::string(bytes, '\x21'));
    text.add_bytes("w_scales", "U8", exponents, std::string(more_bytes, '\x80'));
    auto file = model_writer::open(text.text());
    detail::tensor_reader reader(file);
    std::vector<float> values(64);
    const auto error = message_of<model_error>([&] {
      reader.mxfp4_matrix(
          "w", 2, 32, [&](int row, const weight_row& weights) { weights.decode(values.data() + 32 * row); }, {1, 2});
    });
    // Each byte has the codes 1 and 2, the numbers 0.5 and 1, which the exponent doubles.
    for (std::size_t i = 0; i < values.size() && error.empty(); ++i)
      CHECK(values[i] == (i % 2 == 0 ? 1.0F : 2.0F));
    return error;
  };
  CHECK(message("U8", {2, 2, 1, 16}, 64, {2, 2, 1}, 4).empty());
  CHECK(says(message("I8", {2, 2, 1, 16}, 64, {2, 2, 1}, 4), "\"w_blocks\" has dtype I8, but must be U8"));
  CHECK(says(message("U8", {2, 2, 2, 16}, 128, {2, 2, 1}, 4), "\"w_blocks\" has shape [2, 2, 2, 16], but",
             "[2, 2, 1, 16]"));
  CHECK(says(message("U8", {2, 2, 1, 16}, 64, {2, 2}, 4), "\"w_scales\" has shape [2, 2], but", "[2, 2, 1]"));
}

TEST_CASE("a folder and a GGUF file give a mixture the same bits") {
  for (const std::string model : {"mixtral", "qwen3_moe", "gpt_oss"}) {
    INFO(model);
    llama_backend folder = llama_backend::load(golden(model)),
                  file = llama_backend::load(golden(model) + "/model.gguf");
    CHECK(together(folder, {1, 17, 5, 39, 8}) == together(file, {1, 17, 5, 39, 8}));
  }
}
