// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/model_weights.cpp
#pragma once

#include "espalier/model/llama/model_config.hpp"

namespace espalier::detail {

// The names of the tensors of a recurrent layer's block, without the .weight or .bias at the end; step_bias, decay and
// skip are whole names. A name is null if no model of the layout has the tensor. Rows in the order of groups are those
// of the first group, then those of the second, and so on: a group is a head of queries and keys, and all value heads
// that share it.
struct recurrent_names {
  const char* in = nullptr;          // gates, x, B, C and steps in one tensor
  const char* grouped = nullptr;     // queries, keys, values and gates in one tensor, in the order of groups
  const char* channels = nullptr;    // queries, keys and values in one tensor, in this order
  const char* gates = nullptr;       // gates in one tensor, beside `channels`
  const char* beta_alpha = nullptr;  // beta and alpha in one tensor, in the order of groups
  const char* beta = nullptr;        // a row for each head: the sigmoid of its product is the head's step
  const char* alpha = nullptr;       // a row for each head, from whose product the head's decay comes
  const char* out = nullptr;
  const char *convolution = nullptr, *norm = nullptr;
  const char *step_bias = nullptr, *decay = nullptr, *skip = nullptr;
};

// The names of the tensors in a layout of files, without the .weight or .bias at the end; `sinks` is the whole name.
// Names of a layer's tensors follow `layer` and the layer's number. The config says which of the tensors a model has; a
// name may be null if no model of the layout has the tensor.
struct tensor_names {
  const char* embedding;
  const char* head;
  const char* final_norm;
  const char* layer;
  bool numbered = true;  // false: there is one layer, and no number follows
  const char* attention_norm;
  const char *query, *key, *value;
  const char* query_key_value;  // all three in one tensor
  const char *query_norm, *key_norm;
  const char* attention_out;
  const char* attention_out_norm;
  const char* mlp_norm;
  const char *gate, *up, *down;
  const char* mlp_out_norm;
  const char* gate_up = nullptr;  // gate and up in one tensor
  const char* sinks = nullptr;
  const char* router = nullptr;
  const char* expert = nullptr;  // begins the names of an expert's tensors, before its number and a point; null: one
                                 // tensor holds this matrix of all experts. If expert_gate, expert_up and expert_down
                                 // are null, the tensors are those of gpt-oss: see read_paired_experts(). A file may
                                 // also have gate_up_proj and down_proj after it: see read_stacked_experts()
  const char *expert_gate = nullptr, *expert_up = nullptr, *expert_down = nullptr;
  const char *shared_gate = nullptr, *shared_up = nullptr, *shared_down = nullptr;  // of a shared expert
  const char* shared_router = nullptr;  // the row of weights that gives the gate of a shared expert
  recurrent_names recurrent{};
};

// Returns the names of the tensors in a layout.
inline const tensor_names& names_of(model_config::layout_type layout) {
  static constexpr tensor_names llama{.embedding = "model.embed_tokens",
                                      .head = "lm_head",
                                      .final_norm = "model.norm",
                                      .layer = "model.layers.",
                                      .attention_norm = "input_layernorm",
                                      .query = "self_attn.q_proj",
                                      .key = "self_attn.k_proj",
                                      .value = "self_attn.v_proj",
                                      .query_key_value = "self_attn.qkv_proj",
                                      .query_norm = "self_attn.q_norm",
                                      .key_norm = "self_attn.k_norm",
                                      .attention_out = "self_attn.o_proj",
                                      .attention_out_norm = nullptr,
                                      .mlp_norm = "post_attention_layernorm",
                                      .gate = "mlp.gate_proj",
                                      .up = "mlp.up_proj",
                                      .down = "mlp.down_proj",
                                      .mlp_out_norm = nullptr,
                                      .gate_up = "mlp.gate_up_proj",
                                      .router = "mlp.gate",
                                      .expert = "mlp.experts.",
                                      .expert_gate = "gate_proj",
                                      .expert_up = "up_proj",
                                      .expert_down = "down_proj",
                                      .shared_gate = "mlp.shared_expert.gate_proj",
                                      .shared_up = "mlp.shared_expert.up_proj",
                                      .shared_down = "mlp.shared_expert.down_proj",
                                      .shared_router = "mlp.shared_expert_gate"};
  static constexpr tensor_names gemma2 = [] {
    tensor_names names = llama;
    names.attention_out_norm = "post_attention_layernorm";
    names.mlp_norm = "pre_feedforward_layernorm";
    names.mlp_out_norm = "post_feedforward_layernorm";
    return names;
  }();
  static constexpr tensor_names glm4 = [] {
    tensor_names names = llama;
    names.attention_out_norm = "post_self_attn_layernorm";
    names.mlp_out_norm = "post_mlp_layernorm";
    return names;
  }();
  static constexpr tensor_names bamba = [] {
    tensor_names names = llama;
    names.final_norm = "model.final_layernorm";
    names.mlp_norm = "pre_ff_layernorm";
    names.gate = "feed_forward.gate_proj";
    names.up = "feed_forward.up_proj";
    names.down = "feed_forward.down_proj";
    names.recurrent = {.in = "mamba.in_proj",
                       .out = "mamba.out_proj",
                       .convolution = "mamba.conv1d",
                       .norm = "mamba.norm",
                       .step_bias = "mamba.dt_bias",
                       .decay = "mamba.A_log",
                       .skip = "mamba.D"};
    return names;
  }();
  static constexpr tensor_names mixtral = [] {
    tensor_names names = llama;
    names.router = "block_sparse_moe.gate";
    names.expert = "block_sparse_moe.experts.";
    names.expert_gate = "w1";
    names.expert_up = "w3";
    names.expert_down = "w2";
    return names;
  }();
  static constexpr tensor_names gpt_oss = [] {
    tensor_names names = llama;
    names.sinks = "self_attn.sinks";
    names.router = "mlp.router";
    names.expert = "mlp.experts.";
    names.expert_gate = names.expert_up = names.expert_down = nullptr;
    return names;
  }();
  static constexpr tensor_names qwen3_next = [] {
    tensor_names names = llama;
    names.recurrent = {.grouped = "linear_attn.in_proj_qkvz",
                       .beta_alpha = "linear_attn.in_proj_ba",
                       .out = "linear_attn.out_proj",
                       .convolution = "linear_attn.conv1d",
                       .norm = "linear_attn.norm",
                       .step_bias = "linear_attn.dt_bias",
                       .decay = "linear_attn.A_log"};
    return names;
  }();
  static constexpr tensor_names qwen3_5 = [] {
    tensor_names names = qwen3_next;
    names.recurrent.grouped = names.recurrent.beta_alpha = nullptr;
    names.recurrent.channels = "linear_attn.in_proj_qkv";
    names.recurrent.gates = "linear_attn.in_proj_z";
    names.recurrent.beta = "linear_attn.in_proj_b";
    names.recurrent.alpha = "linear_attn.in_proj_a";
    return names;
  }();
  static constexpr tensor_names qwen3_5_beside_vision = [] {
    tensor_names names = qwen3_5;
    names.embedding = "model.language_model.embed_tokens";
    names.final_norm = "model.language_model.norm";
    names.layer = "model.language_model.layers.";
    return names;
  }();
  static constexpr tensor_names eagle3 = [] {
    tensor_names names = llama;
    names.embedding = "embed_tokens";
    names.final_norm = "norm";
    names.layer = "layers.";
    return names;
  }();
  static constexpr tensor_names eagle3_midlayer = [] {
    tensor_names names = eagle3;
    names.layer = "midlayer.";
    names.numbered = false;
    return names;
  }();
  static constexpr tensor_names mtp = [] {
    tensor_names names = llama;
    names.final_norm = "mtp_layers.0.final_layernorm";
    names.layer = "mtp_layers.";
    return names;
  }();
  static constexpr tensor_names mtp_beside = [] {
    tensor_names names = llama;
    names.final_norm = "mtp.norm";
    names.layer = "mtp.layers.";
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
                                     .mlp_out_norm = "post_ffw_norm",
                                     .gate_up = "ffn_up",
                                     .router = "ffn_gate_inp",
                                     .expert_gate = "ffn_gate_exps",
                                     .expert_up = "ffn_up_exps",
                                     .expert_down = "ffn_down_exps",
                                     .shared_gate = "ffn_gate_shexp",
                                     .shared_up = "ffn_up_shexp",
                                     .shared_down = "ffn_down_shexp",
                                     .shared_router = "ffn_gate_inp_shexp"};
  static constexpr tensor_names gguf_gpt_oss = [] {
    tensor_names names = gguf;
    names.mlp_norm = "post_attention_norm";
    names.sinks = "attn_sinks.weight";
    return names;
  }();
  static constexpr tensor_names gguf_qwen3_5 = [] {
    tensor_names names = gguf;
    names.mlp_norm = "post_attention_norm";
    names.recurrent = {.channels = "attn_qkv",
                       .gates = "attn_gate",
                       .beta = "ssm_beta",
                       .alpha = "ssm_alpha",
                       .out = "ssm_out",
                       .convolution = "ssm_conv1d",
                       .norm = "ssm_norm",
                       .step_bias = "ssm_dt.bias",
                       .decay = "ssm_a"};
    return names;
  }();
  static constexpr tensor_names gguf_qwen3_next = [] {
    tensor_names names = gguf_qwen3_5;
    names.recurrent.beta = names.recurrent.alpha = nullptr;
    names.recurrent.beta_alpha = "ssm_ba";
    return names;
  }();
  switch (layout) {
    case model_config::layout_type::gemma2:
      return gemma2;
    case model_config::layout_type::gpt_neox:
      return gpt_neox;
    case model_config::layout_type::bamba:
      return bamba;
    case model_config::layout_type::mixtral:
      return mixtral;
    case model_config::layout_type::gpt_oss:
    case model_config::layout_type::gpt_oss_mxfp4:
      return gpt_oss;
    case model_config::layout_type::glm4:
      return glm4;
    case model_config::layout_type::qwen3_next:
      return qwen3_next;
    case model_config::layout_type::qwen3_5:
      return qwen3_5;
    case model_config::layout_type::qwen3_5_beside_vision:
      return qwen3_5_beside_vision;
    case model_config::layout_type::gguf:
    case model_config::layout_type::gguf_eagle3:
      return gguf;
    case model_config::layout_type::gguf_qwen3_next:
      return gguf_qwen3_next;
    case model_config::layout_type::gguf_qwen3_5:
      return gguf_qwen3_5;
    case model_config::layout_type::gguf_gpt_oss:
      return gguf_gpt_oss;
    case model_config::layout_type::eagle3:
      return eagle3;
    case model_config::layout_type::eagle3_midlayer:
      return eagle3_midlayer;
    case model_config::layout_type::mtp:
      return mtp;
    case model_config::layout_type::mtp_beside:
      return mtp_beside;
    default:
      return llama;
  }
}

}  // namespace espalier::detail
