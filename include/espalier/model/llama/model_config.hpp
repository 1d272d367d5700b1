// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fstream>
#include <iterator>
#include <string>
#include <string_view>

#include "espalier/core/error.hpp"
#include "espalier/model/files/json_reader.hpp"

namespace espalier {

//! The shape of a transformer, as a Hugging Face config.json gives it.
//!
//! Errors      model_error that names the file, the key, its value and what is allowed
//! Source      transformers: configuration_llama, _qwen2, _qwen3, _gpt_neox
struct model_config {
  enum class family_type { llama, gpt_neox };

  family_type family = family_type::llama;
  int vocab_size = 0;
  int hidden_size = 0;
  int n_layers = 0;
  int n_heads = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int intermediate_size = 0;
  int max_positions = 0;
  int rotary_dims = 0;  //!< leading dimensions of a head that are rotated; even
  double rope_theta = 10000.0;
  float norm_epsilon = 1e-5F;
  bool tied_embeddings = false;
  bool query_key_norm = false;  //!< Qwen3
  bool query_bias = false;      //!< biases of the query, key and value projections
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool parallel_residual = false;  //!< GPT-NeoX: attention and MLP both read the layer's input

  int query_size() const { return n_heads * head_dim; }
  int kv_size() const { return n_kv_heads * head_dim; }

  //! Reads folder/config.json.
  static model_config load(const std::string& folder) {
    const std::string path = folder + "/config.json";
    std::ifstream file(path, std::ios::binary);
    if (!file) raise<model_error>(path, " cannot be opened.");
    const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    return parse(text, path);
  }

  //! Reads the text of a config.json; `where` names it in messages.
  static model_config parse(std::string_view text, const std::string& where) {
    const nlohmann::json object = detail::parse_json_object(text, where);
    const detail::json_reader json(object, where);
    const std::string type = json.text_or("model_type", "");
    model_config config;
    if (type == "llama" || type == "qwen2" || type == "qwen3") {
      config.read_llama(json, type);
    } else if (type == "gpt_neox") {
      config.read_gpt_neox(json);
    } else {
      raise<model_error>(where, ": \"model_type\" is \"", type,
                         "\", but must be one of llama, qwen2, qwen3, gpt_neox.");
    }
    return config;
  }

 private:
  static constexpr int most = 1 << 24;

  void read_sizes(const detail::json_reader& json) {
    vocab_size = json.integer("vocab_size", 1, most);
    hidden_size = json.integer("hidden_size", 1, 1 << 20);
    n_layers = json.integer("num_hidden_layers", 1, 1 << 12);
    n_heads = json.integer("num_attention_heads", 1, 1 << 12);
    intermediate_size = json.integer("intermediate_size", 1, 1 << 22);
    max_positions = json.integer("max_position_embeddings", 1, most);
  }

  void read_llama(const detail::json_reader& json, const std::string& type) {
    family = family_type::llama;
    read_sizes(json);
    n_kv_heads = json.integer_or("num_key_value_heads", n_heads, 1, n_heads);
    if (n_heads % n_kv_heads != 0) {
      raise<model_error>(json.where(), ": \"num_attention_heads\" is ", n_heads,
                         ", but must be a multiple of \"num_key_value_heads\", ", n_kv_heads, ".");
    }
    head_dim = json.has("head_dim") ? json.integer("head_dim", 1, 1 << 12) : head_dim_by_division(json);
    norm_epsilon = static_cast<float>(json.number_or("rms_norm_eps", 1e-6, 0.0, 1.0));
    tied_embeddings = json.flag_or("tie_word_embeddings", false);
    query_key_norm = type == "qwen3";
    const bool attention_bias = json.flag_or("attention_bias", false);
    query_bias = attention_bias || type == "qwen2";
    attention_out_bias = attention_bias && type != "qwen2";
    mlp_bias = json.flag_or("mlp_bias", false);
    require_text(json, "hidden_act", "silu", "silu");
    if (json.flag_or("use_sliding_window", false)) {
      raise<model_error>(json.where(), ": \"use_sliding_window\" is true, which is not supported.");
    }
    require_full_attention(json);
    read_rotary(json, "rope_theta", "partial_rotary_factor", 1.0);
  }

  void read_gpt_neox(const detail::json_reader& json) {
    family = family_type::gpt_neox;
    read_sizes(json);
    n_kv_heads = n_heads;
    head_dim = head_dim_by_division(json);
    norm_epsilon = static_cast<float>(json.number_or("layer_norm_eps", 1e-5, 0.0, 1.0));
    tied_embeddings = json.flag_or("tie_word_embeddings", false);
    parallel_residual = json.flag_or("use_parallel_residual", true);
    query_bias = attention_out_bias = json.flag_or("attention_bias", true);
    mlp_bias = true;
    require_text(json, "hidden_act", "gelu", "gelu");
    read_rotary(json, "rotary_emb_base", "rotary_pct", 0.25);
  }

  int head_dim_by_division(const detail::json_reader& json) const {
    if (hidden_size % n_heads != 0) {
      raise<model_error>(json.where(), ": \"hidden_size\" is ", hidden_size,
                         ", but must be a multiple of \"num_attention_heads\", ", n_heads, ".");
    }
    return hidden_size / n_heads;
  }

  static void require_text(const detail::json_reader& json, const char* key, const char* fallback,
                           const char* allowed) {
    if (json.text_or(key, fallback) != allowed) json.refuse(key, *json.find(key), "\"", allowed, "\"");
  }

  static void require_full_attention(const detail::json_reader& json) {
    const nlohmann::json* types = json.find("layer_types");
    if (!types) return;
    if (!types->is_array()) json.refuse("layer_types", *types, "a list");
    for (const nlohmann::json& type : *types) {
      if (type != "full_attention") json.refuse("layer_types", *types, "a list of \"full_attention\"");
    }
  }

  // Older folders keep the base and the rotated share at the top level and a rope_scaling object beside them; newer
  // ones keep all three in rope_parameters.
  void read_rotary(const detail::json_reader& json, const char* base_key, const char* share_key, double share) {
    rope_theta = json.number_or(base_key, 10000.0, 1.0, 1e12);
    share = json.number_or(share_key, share, 0.0, 1.0);
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const nlohmann::json* found = json.find(key);
      if (!found) continue;
      if (!found->is_object()) json.refuse(key, *found, "an object or null");
      const detail::json_reader rope(*found, json.where() + ": \"" + key + "\"");
      require_text(rope, "rope_type", "default", "default");
      require_text(rope, "type", "default", "default");
      rope_theta = rope.number_or("rope_theta", rope_theta, 1.0, 1e12);
      share = rope.number_or("partial_rotary_factor", share, 0.0, 1.0);
    }
    rotary_dims = static_cast<int>(head_dim * share);
    if (rotary_dims % 2 != 0) {
      raise<model_error>(json.where(), ": ", rotary_dims, " of ", head_dim,
                         " dimensions of a head (head_dim) would be rotated, but the number must be even.");
    }
  }
};

}  // namespace espalier
