// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "model/llama/hybrid_tensors.hpp"
#include "model/llama/model_writer.hpp"

// Writes the tests' tokenizer into a folder of a model with `vocab` tokens: its tokens, or the first ones of them.
inline void write_tokenizer(const std::string& folder, int vocab) {
  std::ifstream file(ESPALIER_TEST_DATA "/tokenizer/bytes.json");
  nlohmann::json tokenizer = nlohmann::json::parse(file);
  if (vocab < 719) {
    nlohmann::json few = nlohmann::json::object();
    for (const auto& [text, token] : tokenizer["model"]["vocab"].items()) {
      if (token < vocab) few[text] = token;
    }
    tokenizer["model"]["vocab"] = few;
    tokenizer["model"]["merges"] = tokenizer["added_tokens"] = nlohmann::json::array();
  }
  std::ofstream(folder + "/tokenizer.json") << tokenizer;
}

// A small random Bamba, or Qwen3.5, as a folder, with a tokenizer.
struct tiny_hybrid {
  float noise = 0.0F;
  espalier::recurrence_kind kind = espalier::recurrence_kind::mamba2;
  int vocab = 719;
  int hidden = 64;
  int layers = 3;
  int positions = 256;

  void write(const std::string& folder) const {
    std::filesystem::create_directories(folder);
    const std::string config = hybrid_tensors::config_text(vocab, hidden, layers, 4, 2, 96, 4, 16, positions, kind);
    std::ofstream(folder + "/config.json") << config;
    write_tokenizer(folder, vocab);
    std::ofstream(folder + "/model.safetensors", std::ios::binary)
        << model_writer::random_hybrid(espalier::model_config::parse(config, "hybrid"), 1, noise).text();
  }
};
