// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>

#include <ggml.h>
#include <gguf.h>

// A small random model as a GGUF file: a Llama, a Gemma 2, whose first layer has a sliding window of 8, or a Mamba.
struct tiny_gguf {
  std::string architecture = "llama";
  std::uint32_t seed = 1;
  std::int64_t vocab = 4096;
  std::uint32_t context = 512;
  std::uint32_t layers = 2;

  std::uint32_t width = 64;

  static constexpr std::uint32_t heads = 4, kv_heads = 1, head_size = 16, hidden = 96;

  void write(const std::string& file) const {
    const ggml_init_params room{std::size_t{64} << 20U, nullptr, false};
    ggml_context* tensors = ggml_init(room);
    gguf_context* out = gguf_init_empty();
    const auto key = [&](const char* name) { return architecture + "." + name; };
    gguf_set_val_str(out, "general.architecture", architecture.c_str());
    gguf_set_val_str(out, "tokenizer.ggml.model", "none");
    gguf_set_val_u32(out, key("vocab_size").c_str(), static_cast<std::uint32_t>(vocab));
    gguf_set_val_u32(out, key("context_length").c_str(), context);
    gguf_set_val_u32(out, key("embedding_length").c_str(), width);
    gguf_set_val_u32(out, key("block_count").c_str(), layers);
    gguf_set_val_u32(out, key("feed_forward_length").c_str(), hidden);
    gguf_set_val_u32(out, key("attention.head_count").c_str(), heads);
    gguf_set_val_u32(out, key("attention.head_count_kv").c_str(), kv_heads);
    gguf_set_val_f32(out, key("attention.layer_norm_rms_epsilon").c_str(), 1e-5F);
    gguf_set_val_u32(out, key("rope.dimension_count").c_str(), head_size);
    std::mt19937 random(seed);
    const auto add = [&](const std::string& name, std::int64_t columns, std::int64_t rows, bool ones = false) {
      ggml_tensor* t = rows == 0 ? ggml_new_tensor_1d(tensors, GGML_TYPE_F32, columns)
                                 : ggml_new_tensor_2d(tensors, GGML_TYPE_F32, columns, rows);
      ggml_set_name(t, name.c_str());
      std::normal_distribution<float> numbers(0.0F, 1.0F / std::sqrt(static_cast<float>(columns)));
      auto* data = static_cast<float*>(t->data);
      for (std::int64_t i = 0; i < ggml_nelements(t); ++i)
        data[i] = ones ? 1.0F : numbers(random);
      gguf_add_tensor(out, t);
    };
    add("token_embd.weight", width, vocab);
    add("output_norm.weight", width, 0, true);
    gguf_set_val_u32(out, key("attention.key_length").c_str(), head_size);
    gguf_set_val_u32(out, key("attention.value_length").c_str(), head_size);
    if (architecture == "gemma2") {
      gguf_set_val_u32(out, "gemma2.attention.sliding_window", 8);
    } else {
      add("output.weight", width, vocab);
    }
    if (architecture == "mamba") {
      gguf_set_val_u32(out, "mamba.ssm.conv_kernel", 4);
      gguf_set_val_u32(out, "mamba.ssm.inner_size", 2 * width);
      gguf_set_val_u32(out, "mamba.ssm.state_size", 8);
      gguf_set_val_u32(out, "mamba.ssm.time_step_rank", 4);
    }
    for (std::uint32_t i = 0; i < layers; ++i) {
      const std::string layer = "blk." + std::to_string(i) + ".";
      add(layer + "attn_norm.weight", width, 0, true);
      if (architecture == "mamba") {
        add(layer + "ssm_in.weight", width, 4 * width);
        add(layer + "ssm_conv1d.weight", 4, 2 * width);
        add(layer + "ssm_conv1d.bias", 2 * width, 0);
        add(layer + "ssm_x.weight", 2 * width, 4 + 2 * 8);
        add(layer + "ssm_dt.weight", 4, 2 * width);
        add(layer + "ssm_dt.bias", 2 * width, 0);
        add(layer + "ssm_a", 8, 2 * width);
        add(layer + "ssm_d", 2 * width, 0);
        add(layer + "ssm_out.weight", 2 * width, width);
        continue;
      }
      add(layer + "attn_q.weight", width, heads * head_size);
      add(layer + "attn_k.weight", width, kv_heads * head_size);
      add(layer + "attn_v.weight", width, kv_heads * head_size);
      add(layer + "attn_output.weight", heads * head_size, width);
      add(layer + "ffn_norm.weight", width, 0, true);
      if (architecture == "gemma2") {
        add(layer + "post_attention_norm.weight", width, 0, true);
        add(layer + "post_ffw_norm.weight", width, 0, true);
      }
      add(layer + "ffn_gate.weight", width, hidden);
      add(layer + "ffn_up.weight", width, hidden);
      add(layer + "ffn_down.weight", hidden, width);
    }
    gguf_write_to_file(out, file.c_str(), false);
    gguf_free(out);
    ggml_free(tensors);
  }
};
