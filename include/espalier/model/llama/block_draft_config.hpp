// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/block_draft_model.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

//! The shape of a block draft, as the config.json beside its weights gives it: a transformer with the target's hidden
//! size, whose heads are rotated in all dimensions.
//!
//! Errors      model_error that names the file, the key, its value and what is allowed
struct block_draft_config : model_config {
  int block_length = 0;            //!< tokens drafted at once, at most: "block_size" without the pending one
  std::vector<int> hidden_layers;  //!< layers of the target, from 0, as llama_options has them ("target_layers" counts
                                   //!< from 1)

  //! Reads folder/config.json.
  static block_draft_config load(const std::string& folder) {
    return parse(detail::text_of_file(folder + "/config.json"), folder + "/config.json");
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
    config.family = "espalier_block";
    config.hidden_size = json.integer("hidden_size", 1, 1 << 20);
    config.n_layers = json.integer("num_hidden_layers", 1, 1 << 12);
    config.n_heads = json.integer("num_attention_heads", 1, 1 << 12);
    config.n_kv_heads = json.integer("num_key_value_heads", 1, config.n_heads);
    config.require_whole_groups(json);
    config.head_dim = json.integer("head_dim", 2, 1 << 12);
    if (config.head_dim % 2 != 0) {
      raise<model_error>(where, ": \"head_dim\" is ", config.head_dim, ", but must be even: all of it is rotated.");
    }
    config.rotary_dims = config.head_dim;
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
    constexpr std::size_t most_layers = 64;
    const nlohmann::json* layers = json.find("target_layers");
    if (!layers) raise<model_error>(json.where(), " lacks \"target_layers\".");
    const auto refuse = [&] {
      json.refuse("target_layers", *layers, "a list of one to ", static_cast<int>(most_layers),
                  " ascending numbers from 1 on");
    };
    if (!layers->is_array() || layers->empty() || layers->size() > most_layers) refuse();
    for (const nlohmann::json& layer : *layers) {
      if (!layer.is_number_integer() || layer < 1 || layer > 1 << 12) refuse();
      const int index = layer.get<int>() - 1;
      if (!hidden_layers.empty() && index <= hidden_layers.back()) refuse();
      hidden_layers.push_back(index);
    }
  }
};

namespace detail {

// Checks that a block draft can follow a target, of which it asks config() and hidden_layers().
//
// Errors: model_error where the models do not fit one another; option_error where the target does not keep a layer.
template <class TargetT>
void check_block_draft_target(const block_draft_config& config, const TargetT& target) {
  const model_config& other = target.config();
  if (config.hidden_size != other.hidden_size) {
    raise<model_error>("the block draft has a \"hidden_size\" of ", config.hidden_size, ", but the target's is ",
                       other.hidden_size, ": they must be the same.");
  }
  if (config.hidden_layers.back() >= other.n_layers) {
    raise<model_error>("the block draft reads the target after ", config.hidden_layers.back() + 1,
                       " layers (\"target_layers\"), but the target has only ", other.n_layers, ".");
  }
  const auto& kept = target.hidden_layers();
  for (const int layer : config.hidden_layers) {
    if (std::find(kept.begin(), kept.end(), layer) != kept.end()) continue;
    std::string all;
    for (const int l : config.hidden_layers)
      all += (all.empty() ? "" : ", ") + std::to_string(l);
    raise<option_error>("option hidden_layers of the target does not list layer ", layer,
                        ", which the block draft reads; it must list ", all, ".");
  }
}

}  // namespace detail

}  // namespace espalier
