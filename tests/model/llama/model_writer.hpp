// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "espalier/model/llama/llama_backend.hpp"
#include "model/llama/hybrid_tensors.hpp"

namespace model_writer {

//! Writes safetensors files, right or wrong, into memory.
class file_text {
 public:
  void add(const std::string& name, const std::vector<std::uint64_t>& shape, const std::vector<float>& values) {
    add_bytes(name, "F32", shape, std::string(reinterpret_cast<const char*>(values.data()), values.size() * 4));
  }

  void add_bytes(const std::string& name, const std::string& dtype, const std::vector<std::uint64_t>& shape,
                 const std::string& bytes) {
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {data.size(), data.size() + bytes.size()}}};
    data += bytes;
  }

  std::string text() const { return text(header.dump()); }

  std::string text(const std::string& header_text) const {
    const std::uint64_t length = header_text.size();
    std::string whole(8, '\0');
    std::memcpy(whole.data(), &length, 8);
    return whole + header_text + data;
  }

  nlohmann::json header = nlohmann::json::object();
  std::string data;
};

inline espalier::safetensors_file open(const std::string& text) {
  return {std::make_unique<std::istringstream>(text), "model.safetensors"};
}

//! Returns a Llama model with random weights, which has mixtures of experts in the layers that the config says, and
//! shared experts if the config has them. Norm scales are near one.
inline file_text random_llama(const espalier::model_config& c, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  file_text file;
  const auto matrix = [&](const std::string& name, int rows, int columns) {
    const float size = name.find("embed") != std::string::npos ? 0.5F : 1.2F / std::sqrt(static_cast<float>(columns));
    std::vector<float> values(static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns));
    for (float& value : values)
      value = normal(random) * size;
    file.add(name, {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)}, values);
  };
  const auto norm = [&](const std::string& name) {
    std::vector<float> values(static_cast<std::size_t>(c.hidden_size));
    for (float& value : values)
      value = 1.0F + 0.1F * normal(random);
    file.add(name, {values.size()}, values);
  };
  matrix("model.embed_tokens.weight", c.vocab_size, c.hidden_size);
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string base = "model.layers." + std::to_string(i) + ".";
    norm(base + "input_layernorm.weight");
    matrix(base + "self_attn.q_proj.weight", c.query_size(), c.hidden_size);
    matrix(base + "self_attn.k_proj.weight", c.kv_size(), c.hidden_size);
    matrix(base + "self_attn.v_proj.weight", c.kv_size(), c.hidden_size);
    matrix(base + "self_attn.o_proj.weight", c.hidden_size, c.query_size());
    norm(base + "post_attention_layernorm.weight");
    const auto mlp = [&](const std::string& of, int size) {
      matrix(of + "gate_proj.weight", size, c.hidden_size);
      matrix(of + "up_proj.weight", size, c.hidden_size);
      matrix(of + "down_proj.weight", c.hidden_size, size);
    };
    if (!c.is_mixture(i)) {
      mlp(base + "mlp.", c.intermediate_size);
      continue;
    }
    matrix(base + "mlp.gate.weight", c.mixture.experts, c.hidden_size);
    if (c.mixture.shared_size > 0) {
      matrix(base + "mlp.shared_expert_gate.weight", 1, c.hidden_size);
      mlp(base + "mlp.shared_expert.", c.mixture.shared_size);
    }
    for (int e = 0; e < c.mixture.experts; ++e)
      mlp(base + "mlp.experts." + std::to_string(e) + ".", c.mixture.size);
  }
  norm("model.norm.weight");
  if (!c.tied_embeddings) matrix("lm_head.weight", c.vocab_size, c.hidden_size);
  return file;
}

//! A gpt-oss with random weights: each product has a bias, and each head a sink.
inline file_text random_gpt_oss(const espalier::model_config& c, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  file_text file;
  const auto tensor = [&](const std::string& name, const std::vector<int>& shape, float size, float offset = 0.0F) {
    std::vector<std::uint64_t> extents(shape.begin(), shape.end());
    std::uint64_t n = 1;
    for (const std::uint64_t extent : extents)
      n *= extent;
    std::vector<float> values(static_cast<std::size_t>(n));
    for (float& value : values)
      value = offset + normal(random) * size;
    file.add(name, extents, values);
  };
  const auto linear = [&](const std::string& name, int rows, int columns) {
    tensor(name + ".weight", {rows, columns}, 1.2F / std::sqrt(static_cast<float>(columns)));
    tensor(name + ".bias", {rows}, 0.2F);
  };
  const int hidden = c.hidden_size, experts = c.mixture.experts, size = c.mixture.size;
  tensor("model.embed_tokens.weight", {c.vocab_size, hidden}, 0.5F);
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string base = "model.layers." + std::to_string(i) + ".";
    tensor(base + "input_layernorm.weight", {hidden}, 0.1F, 1.0F);
    linear(base + "self_attn.q_proj", c.query_size(), hidden);
    linear(base + "self_attn.k_proj", c.kv_size(), hidden);
    linear(base + "self_attn.v_proj", c.kv_size(), hidden);
    linear(base + "self_attn.o_proj", hidden, c.query_size());
    tensor(base + "self_attn.sinks", {c.n_heads}, 1.0F);
    tensor(base + "post_attention_layernorm.weight", {hidden}, 0.1F, 1.0F);
    linear(base + "mlp.router", experts, hidden);
    tensor(base + "mlp.experts.gate_up_proj", {experts, hidden, 2 * size},
           1.2F / std::sqrt(static_cast<float>(hidden)));
    tensor(base + "mlp.experts.gate_up_proj_bias", {experts, 2 * size}, 0.2F);
    tensor(base + "mlp.experts.down_proj", {experts, size, hidden}, 1.2F / std::sqrt(static_cast<float>(size)));
    tensor(base + "mlp.experts.down_proj_bias", {experts, hidden}, 0.2F);
  }
  tensor("model.norm.weight", {hidden}, 0.1F, 1.0F);
  tensor("lm_head.weight", {c.vocab_size, hidden}, 0.3F);
  return file;
}

//! Returns a hybrid with random weights; with noise, one that often agrees with the hybrid of the same seed without.
inline file_text random_hybrid(const espalier::model_config& config, unsigned seed, float noise = 0.0F) {
  std::mt19937 random(seed), more_random(seed + 1);
  // Of deviation 1, and the same on every machine.
  const auto number = [](std::mt19937& from) { return 1.7321F * (static_cast<float>(from() % 4096) / 2048.0F - 1.0F); };
  file_text file;
  hybrid_tensors::for_each(
      config, [&](const std::string& name, const std::vector<std::uint64_t>& shape, float offset, float size) {
        std::uint64_t n = 1;
        for (const std::uint64_t extent : shape)
          n *= extent;
        std::vector<float> values(static_cast<std::size_t>(n));
        for (float& value : values)
          value = offset + size * (number(random) + noise * number(more_random));
        file.add(name, shape, values);
      });
  return file;
}

//! Heads as wide as real models', so that every kernel for whole vectors runs; sizes that are no multiple of a panel.
inline espalier::model_config wide_config() {
  espalier::model_config config;
  config.vocab_size = 203;
  config.hidden_size = 96;
  config.n_layers = 2;
  config.n_heads = 6;
  config.n_kv_heads = 2;
  config.head_dim = config.rotary_dims = 80;
  config.intermediate_size = 150;
  config.max_positions = 256;
  config.tied_embeddings = true;
  return config;
}

inline espalier::llama_backend backend(const espalier::model_config& config, const file_text& file,
                                       const espalier::llama_options& options = {}) {
  espalier::safetensors_file opened = open(file.text());
  return {config, espalier::model_weights::load(config, opened), options};
}

}  // namespace model_writer
