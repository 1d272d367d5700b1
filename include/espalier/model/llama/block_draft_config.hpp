// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/block_draft_model.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/llama/draft_kind.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

//! The shape of a block draft, as the config.json beside its weights gives it: a transformer with the target's hidden
//! size. All dimensions of its heads must be rotated.
//!
//! Three layouts are read: the library's own, whose "model_type" is "espalier_block"; and DFlash's, as z-lab publishes
//! it ("dflash_config", or DFlash in "architectures") and as speculators writes it ("speculators_model_type").
//!
//! Errors      model_error that names the file, the key, its value and what is allowed
//! Source      dflash 0.1.0, model.py; speculators 0.9.0, models/dflash
struct block_draft_config : model_config {
  int block_length = 0;            //!< most tokens drafted at once: "block_size" less one, for the pending token
  std::vector<int> hidden_layers;  //!< layers of the target, from 0, as llama_options has them ("target_layers" counts
                                   //!< from 1)
  //! DFlash's mask token: its embedding is the input at each position whose token is to be drafted. -1: the library's
  //! own layout, which has a learned row for each such position.
  token_id mask_token = -1;

  bool is_dflash() const { return mask_token >= 0; }

  //! Reads folder/config.json.
  static block_draft_config load(const std::string& folder) {
    return parse(detail::text_of_file(folder + "/config.json"), folder + "/config.json");
  }

  //! Reads the text of a config.json; `where` names it in messages.
  static block_draft_config parse(std::string_view text, const std::string& where) {
    const nlohmann::json object = detail::parse_json_object(text, where);
    const detail::json_reader json(object, where);
    if (json.has("speculators_model_type")) return parse_speculators(json);
    if (detail::draft_kind_in(object) == draft_kind::block && json.text_or("model_type", "") != "espalier_block")
      return parse_dflash(json, object);
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
    config.read_layers(json, "target_layers", 1);
    return config;
  }

 private:
  // Reads z-lab's layout: a Qwen3 config, with DFlash's own keys in "dflash_config" or beside the other keys.
  static block_draft_config parse_dflash(const detail::json_reader& json, const nlohmann::json& object) {
    nlohmann::json layer = object, own = object;
    layer.erase("architectures");
    if (const nlohmann::json* inner = json.find("dflash_config")) {
      if (!inner->is_object()) json.refuse("dflash_config", *inner, "an object");
      own.update(*inner);
    }
    const detail::json_reader added(own, json.where());
    for (const char* key : {"selector_rank", "conv_kernel_size"}) {
      if (added.has(key)) {
        raise<model_error>(json.where(), " has \"", key, "\": it is of DFlash2, which is not read.");
      }
    }
    for (const char* key : {"output_multiplier", "input_embedding_scale"}) {
      if (added.number_or(key, 1.0, -1e9, 1e9) != 1.0) added.refuse(key, *added.find(key), "1");
    }
    if (added.number_or("final_logit_softcapping", 0.0, -1e9, 1e9) > 0.0)
      added.refuse("final_logit_softcapping", *added.find("final_logit_softcapping"), "null or 0");
    block_draft_config config = of_layer(layer, json.where());
    config.block_length = added.integer_or("block_size", 16, 2, 1 << 10) - 1;
    config.read_mask_token(added);
    if (added.has("target_layer_ids")) {
      config.read_layers(added, "target_layer_ids", 0);
    } else {
      config.spread_layers(added.integer("num_target_layers", 5, 1 << 12));
    }
    return config;
  }

  // Reads the layout of speculators. Number i in its list of layers means the state before layer i, counted from 0.
  static block_draft_config parse_speculators(const detail::json_reader& json) {
    if (json.text_or("speculators_model_type", "") != "dflash")
      json.refuse("speculators_model_type", *json.find("speculators_model_type"), "\"dflash\"");
    const nlohmann::json* part = json.find("transformer_layer_config");
    if (!part) raise<model_error>(json.where(), " lacks \"transformer_layer_config\".");
    if (!part->is_object()) json.refuse("transformer_layer_config", *part, "an object");
    // Such a file leaves out numbers that are the defaults of the class in transformers.
    nlohmann::json layer{{"vocab_size", 151936},
                         {"hidden_size", 4096},
                         {"intermediate_size", 22016},
                         {"num_hidden_layers", 32},
                         {"num_attention_heads", 32},
                         {"num_key_value_heads", 32},
                         {"max_position_embeddings", 32768}};
    layer.update(*part);
    layer.erase("architectures");
    block_draft_config config = of_layer(layer, json.where() + ": \"transformer_layer_config\"");
    if (json.flag_or("sample_from_anchor", false))
      json.refuse("sample_from_anchor", true, "false: the row of the pending token drafts nothing");
    if (json.integer_or("draft_vocab_size", config.vocab_size, 1, config.vocab_size) != config.vocab_size)
      json.refuse("draft_vocab_size", *json.find("draft_vocab_size"), config.vocab_size,
                  ", all tokens: a block draft's rows are over the target's output matrix");
    config.block_length = json.integer_or("block_size", 8, 2, 1 << 10) - 1;
    config.read_mask_token(json);
    config.read_layers(json, "aux_hidden_state_layer_ids", 1);
    return config;
  }

  // Reads the config of the transformer of a DFlash block.
  static block_draft_config of_layer(const nlohmann::json& layer, const std::string& where) {
    block_draft_config config;
    static_cast<model_config&>(config) = model_config::parse(layer.dump(), where);
    const detail::json_reader json(layer, where);
    if (config.family != "qwen3") json.refuse("model_type", *json.find("model_type"), "\"qwen3\"");
    if (config.query_bias || config.attention_out_bias) json.refuse("attention_bias", true, "false");
    if (config.rotary_dims != config.head_dim) {
      raise<model_error>(where, ": \"partial_rotary_factor\" has ", config.rotary_dims, " of ", config.head_dim,
                         " dimensions of a head rotated, but those of a block draft must all be.");
    }
    if (json.flag_or("is_causal", false)) json.refuse("is_causal", true, "false: all rows of a block see one another");
    for (int i = 0; i < config.n_layers; ++i) {
      if (config.window_of(i) > 0)
        raise<model_error>(where, ": layer ", i, " has a window of ", config.window, " tokens, which a block draft ",
                           "must not have.");
    }
    config.tied_embeddings = false;
    return config;
  }

  void read_mask_token(const detail::json_reader& json) {
    mask_token = json.integer("mask_token_id", 0, vocab_size - 1);
  }

  // Sets hidden_layers to layers of the target at equal distances, as DFlash does if the file names none.
  void spread_layers(int target_layers) {
    if (n_layers == 1) hidden_layers = {target_layers / 2};
    for (int i = 0; i < n_layers && n_layers > 1; ++i)
      hidden_layers.push_back(static_cast<int>(std::nearbyint(1.0 + i * (target_layers - 4.0) / (n_layers - 1))));
  }

  // Reads the list of layers at `key`, in which the number `first` means the target's first layer.
  void read_layers(const detail::json_reader& json, const char* key, int first) {
    constexpr std::size_t most_layers = 64;
    const nlohmann::json* layers = json.find(key);
    if (!layers) raise<model_error>(json.where(), " lacks \"", key, "\".");
    const auto refuse = [&] {
      json.refuse(key, *layers, "a list of one to ", static_cast<int>(most_layers), " ascending numbers from ", first,
                  " on");
    };
    if (!layers->is_array() || layers->empty() || layers->size() > most_layers) refuse();
    for (const nlohmann::json& layer : *layers) {
      if (!layer.is_number_integer() || layer < first || layer > 1 << 12) refuse();
      const int index = layer.get<int>() - first;
      if (!hidden_layers.empty() && index <= hidden_layers.back()) refuse();
      hidden_layers.push_back(index);
    }
  }
};

namespace detail {

// Checks that a block draft can follow a target, by the target's config() and hidden_layers().
//
// Errors: model_error if the models do not fit one another; option_error if the target does not keep a layer that the
// draft reads.
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
  if (config.is_dflash() && config.vocab_size != other.vocab_size) {
    raise<model_error>("the block draft has a \"vocab_size\" of ", config.vocab_size, ", but the target's is ",
                       other.vocab_size, ": they must be the same.");
  }
  if (config.is_dflash() && config.hidden_layers.back() == other.n_layers - 1) {
    raise<model_error>("the block draft reads the target's state after its last layer, number ", other.n_layers - 1,
                       ", which DFlash takes after the final norm: that is not read.");
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
