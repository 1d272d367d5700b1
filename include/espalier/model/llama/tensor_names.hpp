// SPDX-License-Identifier: BSL-1.0
#pragma once

#include "espalier/model/llama/model_config.hpp"

namespace espalier::detail {

// What a file calls the tensors of a model, without the .weight or .bias at the end. Those of a layer follow `layer`
// and the layer's number. Null where a model of this kind has none.
struct tensor_names {
  const char* embedding;
  const char* head;
  const char* final_norm;
  const char* layer;
  const char* attention_norm;
  const char *query, *key, *value;
  const char* query_key_value;  // all three in one tensor
  const char *query_norm, *key_norm;
  const char* attention_out;
  const char* attention_out_norm;
  const char* mlp_norm;
  const char *gate, *up, *down;
  const char* mlp_out_norm;
  const char* mamba = nullptr;  // what the parts of a Mamba-2 block begin with
};

inline const tensor_names& names_of(model_config::layout_type layout) {
  static constexpr tensor_names llama{.embedding = "model.embed_tokens",
                                      .head = "lm_head",
                                      .final_norm = "model.norm",
                                      .layer = "model.layers.",
                                      .attention_norm = "input_layernorm",
                                      .query = "self_attn.q_proj",
                                      .key = "self_attn.k_proj",
                                      .value = "self_attn.v_proj",
                                      .query_key_value = nullptr,
                                      .query_norm = "self_attn.q_norm",
                                      .key_norm = "self_attn.k_norm",
                                      .attention_out = "self_attn.o_proj",
                                      .attention_out_norm = nullptr,
                                      .mlp_norm = "post_attention_layernorm",
                                      .gate = "mlp.gate_proj",
                                      .up = "mlp.up_proj",
                                      .down = "mlp.down_proj",
                                      .mlp_out_norm = nullptr};
  static constexpr tensor_names gemma2 = [] {
    tensor_names names = llama;
    names.attention_out_norm = "post_attention_layernorm";
    names.mlp_norm = "pre_feedforward_layernorm";
    names.mlp_out_norm = "post_feedforward_layernorm";
    return names;
  }();
  static constexpr tensor_names bamba = [] {
    tensor_names names = llama;
    names.final_norm = "model.final_layernorm";
    names.mlp_norm = "pre_ff_layernorm";
    names.gate = "feed_forward.gate_proj";
    names.up = "feed_forward.up_proj";
    names.down = "feed_forward.down_proj";
    names.mamba = "mamba.";
    return names;
  }();
  static constexpr tensor_names gpt_neox{.embedding = "gpt_neox.embed_in",
                                         .head = "embed_out",
                                         .final_norm = "gpt_neox.final_layer_norm",
                                         .layer = "gpt_neox.layers.",
                                         .attention_norm = "input_layernorm",
                                         .query = nullptr,
                                         .key = nullptr,
                                         .value = nullptr,
                                         .query_key_value = "attention.query_key_value",
                                         .query_norm = nullptr,
                                         .key_norm = nullptr,
                                         .attention_out = "attention.dense",
                                         .attention_out_norm = nullptr,
                                         .mlp_norm = "post_attention_layernorm",
                                         .gate = nullptr,
                                         .up = "mlp.dense_h_to_4h",
                                         .down = "mlp.dense_4h_to_h",
                                         .mlp_out_norm = nullptr};
  static constexpr tensor_names gguf{.embedding = "token_embd",
                                     .head = "output",
                                     .final_norm = "output_norm",
                                     .layer = "blk.",
                                     .attention_norm = "attn_norm",
                                     .query = "attn_q",
                                     .key = "attn_k",
                                     .value = "attn_v",
                                     .query_key_value = "attn_qkv",
                                     .query_norm = "attn_q_norm",
                                     .key_norm = "attn_k_norm",
                                     .attention_out = "attn_output",
                                     .attention_out_norm = "post_attention_norm",
                                     .mlp_norm = "ffn_norm",
                                     .gate = "ffn_gate",
                                     .up = "ffn_up",
                                     .down = "ffn_down",
                                     .mlp_out_norm = "post_ffw_norm"};
  switch (layout) {
    case model_config::layout_type::gemma2:
      return gemma2;
    case model_config::layout_type::gpt_neox:
      return gpt_neox;
    case model_config::layout_type::bamba:
      return bamba;
    case model_config::layout_type::gguf:
      return gguf;
    default:
      return llama;
  }
}

}  // namespace espalier::detail
