// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/files/json_reader.hpp"

namespace espalier {

//! The shape of a block draft, as the config.json beside its weights gives it.
//!
//! Errors      model_error that names the file, the key, its value and what is allowed
struct block_draft_config {
  int hidden_size = 0;  //!< that of the target
  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;  //!< even: all of it is rotated
  int intermediate_size = 0;
  int max_positions = 0;
  int block_length = 0;  //!< tokens drafted at once, at most: "block_size" without the pending one
  double rope_theta = 10000.0;
  float norm_epsilon = 1e-5F;
  std::vector<int> hidden_layers;  //!< of the target, from 0, as llama_options has them: "target_layers" counts from 1

  int query_size() const { return n_heads * head_dim; }
  int kv_size() const { return n_kv_heads * head_dim; }

  //! Reads folder/config.json.
  static block_draft_config load(const std::string& folder) {
    const std::string path = folder + "/config.json";
    std::ifstream file(path, std::ios::binary);
    if (!file) raise<model_error>(path, " cannot be opened.");
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    return parse(text, path);
  }

  //! Reads the text of a config.json; `where` names it in messages.
  static block_draft_config parse(std::string_view text, const std::string& where) {
    const nlohmann::json object = detail::parse_json_object(text, where);
    const detail::json_reader json(object, where);
    const auto require_text = [&](const char* key, const char* allowed) {
      if (json.text_or(key, allowed) != allowed) json.refuse(key, *json.find(key), "\"", allowed, "\"");
    };
    if (!json.has("model_type")) raise<model_error>(where, " lacks \"model_type\".");
    require_text("model_type", "espalier_block");
    require_text("hidden_act", "silu");
    block_draft_config config;
    config.hidden_size = json.integer("hidden_size", 1, 1 << 20);
    config.n_layers = json.integer("num_hidden_layers", 1, 1 << 12);
    config.n_heads = json.integer("num_attention_heads", 1, 1 << 12);
    config.n_kv_heads = json.integer("num_key_value_heads", 1, config.n_heads);
    if (config.n_heads % config.n_kv_heads != 0) {
      raise<model_error>(where, ": \"num_attention_heads\" is ", config.n_heads,
                         ", but must be a multiple of \"num_key_value_heads\", ", config.n_kv_heads, ".");
    }
    config.head_dim = json.integer("head_dim", 2, 1 << 12);
    if (config.head_dim % 2 != 0) {
      raise<model_error>(where, ": \"head_dim\" is ", config.head_dim, ", but must be even: all of it is rotated.");
    }
    config.intermediate_size = json.integer("intermediate_size", 1, 1 << 22);
    config.max_positions = json.integer("max_position_embeddings", 1, 1 << 24);
    config.block_length = json.integer("block_size", 2, 1 << 10) - 1;
    config.rope_theta = json.number_or("rope_theta", 10000.0, 1.0, 1e12);
    config.norm_epsilon = static_cast<float>(json.number_or("rms_norm_eps", 1e-5, 0.0, 1.0));
    config.read_target_layers(json);
    return config;
  }

 private:
  void read_target_layers(const detail::json_reader& json) {
    constexpr std::size_t most = 64;
    const nlohmann::json* layers = json.find("target_layers");
    if (!layers) raise<model_error>(json.where(), " lacks \"target_layers\".");
    const auto refuse = [&] {
      json.refuse("target_layers", *layers, "a list of one to ", static_cast<int>(most),
                  " ascending numbers from 1 on");
    };
    if (!layers->is_array() || layers->empty() || layers->size() > most) refuse();
    for (const nlohmann::json& layer : *layers) {
      if (!layer.is_number_integer() || layer < 1 || layer > 1 << 12) refuse();
      const int index = layer.get<int>() - 1;
      if (!hidden_layers.empty() && index <= hidden_layers.back()) refuse();
      hidden_layers.push_back(index);
    }
  }
};

}  // namespace espalier
