// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstddef>

#include "espalier/cuda/model/llama/model_weights.cuh"
#include "espalier/model/llama/model_config.hpp"
#include "random_numbers.cuh"
#include "timed_event.cuh"

namespace bench {

//! The shape of Qwen3-8B; if `tiny`, a small model of the same family.
inline espalier::model_config large_shape(bool tiny) {
  return espalier::model_config::parse(
      tiny ? R"({"model_type": "qwen3", "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 256,
      "max_position_embeddings": 4096, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
      "hidden_act": "silu"})"
           : R"({"model_type": "qwen3", "vocab_size": 151936, "hidden_size": 4096,
      "num_hidden_layers": 36, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
      "intermediate_size": 12288, "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
      "tie_word_embeddings": false, "hidden_act": "silu"})",
      "the shape of Qwen3-8B");
}

//! The shape of four layers of Qwen3-30B-A3B, a mixture of experts; if `tiny`, a small model of the same family.
inline espalier::model_config mixture_of_experts(bool tiny) {
  return espalier::model_config::parse(
      tiny ? R"({"model_type": "qwen3_moe", "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 2,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 256,
      "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": true,
      "max_position_embeddings": 4096, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
      "hidden_act": "silu"})"
           : R"({"model_type": "qwen3_moe", "vocab_size": 151936, "hidden_size": 2048,
      "num_hidden_layers": 4, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128,
      "intermediate_size": 6144, "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768,
      "norm_topk_prob": true, "max_position_embeddings": 40960, "rope_theta": 1000000.0, "rms_norm_eps": 1e-6,
      "tie_word_embeddings": false, "hidden_act": "silu"})",
      "the shape of Qwen3-30B-A3B");
}

//! The shape of four layers of Qwen3-Next-80B-A3B, of which three are recurrent; if `tiny`, a small model of the same
//! family.
inline espalier::model_config hybrid_shape(bool tiny) {
  return espalier::model_config::parse(
      tiny ? R"({"model_type": "qwen3_next", "vocab_size": 512, "hidden_size": 128, "num_hidden_layers": 4,
      "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64, "intermediate_size": 256,
      "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
      "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "shared_expert_intermediate_size": 64,
      "linear_conv_kernel_dim": 4, "full_attention_interval": 4, "partial_rotary_factor": 0.25,
      "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true, "max_position_embeddings": 4096,
      "rope_theta": 10000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": false, "hidden_act": "silu"})"
           : R"({"model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048, "num_hidden_layers": 4,
      "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "intermediate_size": 5120,
      "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
      "linear_value_head_dim": 128, "num_experts": 512, "num_experts_per_tok": 10, "moe_intermediate_size": 512,
      "shared_expert_intermediate_size": 512, "linear_conv_kernel_dim": 4, "full_attention_interval": 4,
      "partial_rotary_factor": 0.25, "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": true,
      "max_position_embeddings": 262144, "rope_theta": 10000000.0, "rms_norm_eps": 1e-6, "tie_word_embeddings": false,
      "hidden_act": "silu"})",
      "the shape of Qwen3-Next-80B-A3B");
}

//! Weights of a model of such a shape, drawn at random on the device so that sums over the hidden size stay about 1,
//! and recurrent states decay.
inline espalier::cuda::model_weights<__nv_bfloat16> random_weights(const espalier::model_config& config) {
  auto weights = espalier::cuda::model_weights<__nv_bfloat16>::of_shape(config);
  fill_random(weights.head.matrix, weights.matrices.bytes() / sizeof(__nv_bfloat16), 0.0156F, 1, nullptr);
  fill_random(weights.layers[0].attention_norm.scale, weights.vectors.bytes() / sizeof(float), 0.1F, 2, nullptr, 1.0F);
  for (const auto& layer : weights.layers) {
    if (layer.recurrence.decay != nullptr)
      fill_random(layer.recurrence.decay, static_cast<std::size_t>(config.recurrence.heads), 0.1F, 4, nullptr, -1.0F);
  }
  require(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  return weights;
}

}  // namespace bench
