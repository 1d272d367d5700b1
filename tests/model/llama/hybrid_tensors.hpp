// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "espalier/model/llama/model_config.hpp"

//! A Bamba, or a dense Qwen3.5, with random weights.
namespace hybrid_tensors {

//! Returns the config.json of a hybrid: attention in one of four layers, from the second on. In a delta network each
//! group has two heads.
inline std::string config_text(int vocab, int hidden, int layers, int heads, int kv_heads, int intermediate,
                               int recurrent_heads, int state, int positions,
                               espalier::recurrence_kind kind = espalier::recurrence_kind::mamba2) {
  const bool delta = kind == espalier::recurrence_kind::gated_delta;
  std::string attention, types;
  for (int i = 0; i < layers; ++i) {
    if (i % 4 == 1) attention += (attention.empty() ? "" : ", ") + std::to_string(i);
    types += std::string(i > 0 ? ", " : "") + (i % 4 == 1 ? "\"full_attention\"" : "\"linear_attention\"");
  }
  std::string text = std::string("{\"model_type\": ") + (delta ? "\"qwen3_5_text\"" : "\"bamba\"") +
                     ", \"hidden_act\": \"silu\", " +
                     (delta ? "\"layer_types\": [" + types + "]" : "\"attn_layer_indices\": [" + attention + "]");
  const auto add = [&](const char* key, int value) {
    text += std::string(", \"") + key + "\": " + std::to_string(value);
  };
  add("vocab_size", vocab), add("hidden_size", hidden), add("num_hidden_layers", layers);
  add("num_attention_heads", heads), add("num_key_value_heads", kv_heads), add("intermediate_size", intermediate);
  add("max_position_embeddings", positions);
  if (delta) {
    add("head_dim", hidden / heads), add("linear_key_head_dim", state);
    add("linear_num_value_heads", recurrent_heads), add("linear_num_key_heads", recurrent_heads / 2);
    add("linear_value_head_dim", 2 * hidden / recurrent_heads);
  } else {
    add("mamba_n_heads", recurrent_heads), add("mamba_d_state", state);
  }
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
  const bool delta = c.recurrence.is_delta();
  const float whole = c.norms_less_one ? 0.0F : 1.0F;
  const std::string mlp = delta ? "mlp." : "feed_forward.";
  matrix("model.embed_tokens", c.vocab_size, c.hidden_size);
  for (int i = 0; i < c.n_layers; ++i) {
    const std::string base = "model.layers." + std::to_string(i) + ".";
    vector(base + "input_layernorm.weight", c.hidden_size, whole, 0.1F);
    if (c.is_recurrent(i)) {
      const espalier::recurrent_block_shape& r = c.recurrence;
      const std::string block = base + (delta ? "linear_attn." : "mamba.");
      if (delta) {
        matrix(block + "in_proj_qkv", r.convolved(), c.hidden_size);
        matrix(block + "in_proj_z", r.inner(), c.hidden_size);
        matrix(block + "in_proj_a", r.heads, c.hidden_size);
        matrix(block + "in_proj_b", r.heads, c.hidden_size);
      } else {
        matrix(block + "in_proj", r.projected(), c.hidden_size);
        vector(block + "conv1d.bias", r.convolved(), 0.0F, 0.2F);
        vector(block + "D", r.heads, 1.0F, 0.2F);
      }
      matrix(block + "out_proj", c.hidden_size, r.inner());
      visit(block + "conv1d.weight",
            shape{static_cast<std::uint64_t>(r.convolved()), 1, static_cast<std::uint64_t>(r.taps)}, 0.0F, 0.6F);
      vector(block + "dt_bias", r.heads, 0.0F, 0.2F);
      vector(block + "A_log", r.heads, -1.5F, 0.5F);
      vector(block + "norm.weight", r.norm_size(), 1.0F, 0.1F);
    } else {
      matrix(base + "self_attn.q_proj", (c.attention_gate ? 2 : 1) * c.query_size(), c.hidden_size);
      matrix(base + "self_attn.k_proj", c.kv_size(), c.hidden_size);
      matrix(base + "self_attn.v_proj", c.kv_size(), c.hidden_size);
      matrix(base + "self_attn.o_proj", c.hidden_size, c.query_size());
      if (c.query_key_norm) {
        vector(base + "self_attn.q_norm.weight", c.head_dim, whole, 0.1F);
        vector(base + "self_attn.k_norm.weight", c.head_dim, whole, 0.1F);
      }
    }
    vector(base + (delta ? "post_attention_layernorm.weight" : "pre_ff_layernorm.weight"), c.hidden_size, whole, 0.1F);
    matrix(base + mlp + "gate_proj", c.intermediate_size, c.hidden_size);
    matrix(base + mlp + "up_proj", c.intermediate_size, c.hidden_size);
    matrix(base + mlp + "down_proj", c.hidden_size, c.intermediate_size);
  }
  vector(delta ? "model.norm.weight" : "model.final_layernorm.weight", c.hidden_size, whole, 0.1F);
  matrix("lm_head", c.vocab_size, c.hidden_size);
}

}  // namespace hybrid_tensors
