// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstdint>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "espalier/model/tokenizer/tokenizer/tokenizer_parts.hpp"
#include "model/files/gguf_writer.hpp"
#include "program.hpp"

// A small random Llama as a GGUF file with a tokenizer, a token a byte, and a chat template: the same file on every
// machine.
struct tiny_gguf {
  std::string architecture = "llama";
  unsigned seed = 1;
  int spare_tokens = 0;  // beyond those that are needed
  int spare_rows = 0;    // of the model, without tokens
  int first_byte = 0;    // the byte of the first token
  int byte_length = 1;   // times that each token repeats its byte
  int context = 512;
  bool chats = true;
  bool has_tokenizer = true;

  static constexpr int width = 32, hidden = 48, heads = 4, kv_heads = 2, layers = 2;

  std::string text() const {
    gguf_writer::file_text file;
    file.add("general.architecture", architecture);
    const auto add = [&](const std::string& key, auto value) { file.add(architecture + "." + key, value); };
    add("context_length", context);
    add("embedding_length", width);
    add("block_count", layers);
    add("feed_forward_length", hidden);
    add("attention.head_count", heads);
    add("attention.head_count_kv", kv_heads);
    add("attention.layer_norm_rms_epsilon", 1e-5F);
    const int vocab = add_tokenizer(file);
    std::mt19937 random(seed);
    const auto add_matrix = [&](const std::string& name, int rows, int columns) {
      std::vector<float> values(static_cast<std::size_t>(rows * columns));
      for (float& value : values)
        value = (static_cast<float>(random() % 4096) / 2048.0F - 1.0F) * 2.0F / std::sqrt(static_cast<float>(columns));
      file.add_tensor(name, {static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns)}, values);
    };
    const auto add_norm = [&](const std::string& name) {
      file.add_tensor(name, {width}, std::vector<float>(width, 1.0F));
    };
    add_matrix("token_embd.weight", vocab, width);
    add_norm("output_norm.weight");
    for (int i = 0; i < layers; ++i) {
      const std::string layer = "blk." + std::to_string(i) + ".";
      add_norm(layer + "attn_norm.weight");
      add_matrix(layer + "attn_q.weight", width, width);
      add_matrix(layer + "attn_k.weight", width / heads * kv_heads, width);
      add_matrix(layer + "attn_v.weight", width / heads * kv_heads, width);
      add_matrix(layer + "attn_output.weight", width, width);
      add_norm(layer + "ffn_norm.weight");
      add_matrix(layer + "ffn_gate.weight", hidden, width);
      add_matrix(layer + "ffn_up.weight", hidden, width);
      add_matrix(layer + "ffn_down.weight", width, hidden);
    }
    return file.text();
  }

  // Its path.
  std::string write(const std::string& name) const { return put(name, text()); }

  static std::string put(const std::string& name, const std::string& bytes) {
    const std::string path = scratch() + "/" + name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

 private:
  int add_tokenizer(gguf_writer::file_text& file) const {
    std::vector<std::string> words;
    for (int i = 0; i < 256; ++i) {
      const std::string byte = espalier::detail::spelling_of(static_cast<unsigned char>(i + first_byte));
      words.emplace_back();
      for (int n = 0; n < byte_length; ++n)
        words.back() += byte;
    }
    for (const char* mark : {"<|im_start|>", "<|im_end|>"})
      words.emplace_back(mark);
    for (int i = 0; i < spare_tokens; ++i)
      words.push_back("<spare " + std::to_string(i) + ">");
    if (has_tokenizer) {
      std::string kinds = gguf_writer::bytes_of(std::uint32_t{5}) + gguf_writer::bytes_of(std::uint64_t{words.size()});
      for (std::size_t i = 0; i < words.size(); ++i)
        kinds += gguf_writer::bytes_of(std::int32_t{i < 256 ? 1 : 3});
      file.add("tokenizer.ggml.model", "gpt2");
      file.add("tokenizer.ggml.pre", "smollm");
      file.add("tokenizer.ggml.tokens", words);
      file.add("tokenizer.ggml.merges", std::vector<std::string>());
      file.add_raw("tokenizer.ggml.token_type", 9, kinds);
      file.add("tokenizer.ggml.eos_token_id", 257);
      if (chats) {
        file.add("tokenizer.chat_template",
                 "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
                 "'<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
                 "{% endif %}");
      }
    }
    return static_cast<int>(words.size()) + spare_rows;
  }
};
