// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "espalier/model/llama/model_config.hpp"

//! The tensors of a Bamba of random weights.
namespace hybrid_tensors {

//! The config.json of a hybrid: attention in one of four layers, from the second on.
inline std::string config_text(int vocab, int hidden, int layers, int heads, int kv_heads, int intermediate,
                               int mamba_heads, int state, int positions) {
  std::string attention;
  for (int i = 1; i < layers; i += 4)
    attention += (attention.empty() ? "" : ", ") + std::to_string(i);
  std::string text =
      "{\"model_type\": \"bamba\", \"hidden_act\": \"silu\", \"attn_layer_indices\": [" + attention + "]";
  const auto add = [&](const char* key, int value) {
    text += std::string(", \"") + key + "\": " + std::to_string(value);
  };
  add("vocab_size", vocab), add("hidden_size", hidden), add("num_hidden_layers", layers);
  add("num_attention_heads", heads), add("num_key_value_heads", kv_heads), add("intermediate_size", intermediate);
  add("max_position_embeddings", positions), add("mamba_n_heads", mamba_heads), add("mamba_d_state", state);
  return text + "}\n";
}

//! visit(name, shape, offset, size): the numbers are offset + size * normal. Of a size at which every part matters to
//! the logits.
template <class VisitT>
void for_each(const espalier::model_config& c, const VisitT& visit) {
  using shape = std::vector<std::uint64_t>;
  const auto matrix = [&](const std::string& name, int rows, int columns) {
    const float size = name.find("embed") != std::string::npos ? 0.5F : 1.2F / std::sqrt(static_cast<float>(columns));
    visit(name + ".weight", shape{static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)}, 0.0F, size);
  };
  const auto vector = [&](const std::string& name, int n, float offset, float size) {
    visit(name, shape{static_cast<std::uint64_t>(n)}, offset, size);
  };
  matrix("model.embed_tokens", c.vocab_size, c.hidden_size);
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string base = "model.layers." + std::to_string(i) + ".";
    vector(base + "input_layernorm.weight", c.hidden_size, 1.0F, 0.1F);
    if (c.is_recurrent(i)) {
      const espalier::mamba_shape& m = c.mamba;
      matrix(base + "mamba.in_proj", m.projected(), c.hidden_size);
      matrix(base + "mamba.out_proj", c.hidden_size, m.inner());
      visit(base + "mamba.conv1d.weight",
            shape{static_cast<std::uint64_t>(m.convolved()), 1, static_cast<std::uint64_t>(m.taps)}, 0.0F, 0.6F);
      vector(base + "mamba.conv1d.bias", m.convolved(), 0.0F, 0.2F);
      vector(base + "mamba.dt_bias", m.heads, 0.0F, 0.2F);
      vector(base + "mamba.A_log", m.heads, -1.5F, 0.5F);
      vector(base + "mamba.D", m.heads, 1.0F, 0.2F);
      vector(base + "mamba.norm.weight", m.inner(), 1.0F, 0.1F);
    } else {
      matrix(base + "self_attn.q_proj", c.query_size(), c.hidden_size);
      matrix(base + "self_attn.k_proj", c.kv_size(), c.hidden_size);
      matrix(base + "self_attn.v_proj", c.kv_size(), c.hidden_size);
      matrix(base + "self_attn.o_proj", c.hidden_size, c.query_size());
    }
    vector(base + "pre_ff_layernorm.weight", c.hidden_size, 1.0F, 0.1F);
    matrix(base + "feed_forward.gate_proj", c.intermediate_size, c.hidden_size);
    matrix(base + "feed_forward.up_proj", c.intermediate_size, c.hidden_size);
    matrix(base + "feed_forward.down_proj", c.hidden_size, c.intermediate_size);
  }
  vector("model.final_layernorm.weight", c.hidden_size, 1.0F, 0.1F);
  matrix("lm_head", c.vocab_size, c.hidden_size);
}

}  // namespace hybrid_tensors
