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
//! Four layouts are read: the library's own, whose "model_type" is "espalier_block"; DFlash's, as z-lab publishes it
//! ("dflash_config", or DFlash in "architectures") and as speculators writes it ("speculators_model_type"); and
//! DSpark's as speculators writes it, which is DFlash's with a Markov head.
//!
//! Errors      model_error that names the file, the key, its value and what is allowed
//! Source      dflash 0.1.0, model.py; speculators 0.9.0, models/dflash and models/dspark
struct block_draft_config : model_config {
  //! Kinds of Markov heads. A Markov head adds to the logits of a row the product of its output matrix with a vector of
  //! markov_rank numbers; the kind says which vector.
  enum class markov_kind {
    vanilla,  //!< the embedding of the token before, of a table that the head has
    gated,    //!< the same, times a gate for each number; gates depend on the row's state and on the embedding
    rnn,      //!< the output of a recurrent unit over the path, from the pending token on
  };

  int block_length = 0;            //!< most tokens drafted at once: "block_size", less one for the pending token unless
                                   //!< from_pending
  std::vector<int> hidden_layers;  //!< layers of the target, from 0, as llama_options has them ("target_layers" counts
                                   //!< from 1)
  //! DFlash's mask token: its embedding is the input at each position whose token is to be drafted. -1: the library's
  //! own layout, which has a learned row for each such position.
  token_id mask_token = -1;

  bool from_pending = false;  //!< the row of the pending token drafts the first token
  int markov_rank = 0;        //!< 0: there is no Markov head
  markov_kind markov = markov_kind::vanilla;
  int confidence_inputs = 0;  //!< inputs of the file's confidence head, which is not computed; 0: there is none

  bool is_dflash() const { return mask_token >= 0; }
  //! Numbers of a row that gates or a recurrent unit read from its state.
  int markov_gates() const {
    return markov == markov_kind::vanilla ? 0 : (markov == markov_kind::gated ? 1 : 3) * markov_rank;
  }

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
    const std::string type = json.text_or("speculators_model_type", "");
    if (type != "dflash" && type != "dspark")
      json.refuse("speculators_model_type", *json.find("speculators_model_type"), "\"dflash\" or \"dspark\"");
    block_draft_config config =
        of_layer(detail::speculators_layer(json), json.where() + ": \"transformer_layer_config\"");
    if (json.integer_or("draft_vocab_size", config.vocab_size, 1, config.vocab_size) != config.vocab_size)
      json.refuse("draft_vocab_size", *json.find("draft_vocab_size"), config.vocab_size,
                  ", all tokens: a block draft's rows are over the target's output matrix");
    config.from_pending = json.flag_or("sample_from_anchor", type == "dspark");
    config.block_length = json.integer_or("block_size", 8, config.from_pending ? 1 : 2, 1 << 10);
    if (!config.from_pending) --config.block_length;
    if (type == "dspark") config.read_markov_head(json);
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

  // Reads DSpark's keys.
  void read_markov_head(const detail::json_reader& json) {
    markov_rank = json.integer_or("markov_rank", 256, 0, 1 << 14);
    const std::string kind = json.text_or("markov_head_type", "vanilla");
    if (kind != "vanilla" && kind != "gated" && kind != "rnn")
      json.refuse("markov_head_type", kind, "\"vanilla\", \"gated\" or \"rnn\"");
    markov = kind == "gated" ? markov_kind::gated : kind == "rnn" ? markov_kind::rnn : markov_kind::vanilla;
    if (markov == markov_kind::rnn && !from_pending) {
      json.refuse("sample_from_anchor", false,
                  "true with a \"markov_head_type\" of \"rnn\": the state after the pending token's row is not kept");
    }
    if (!json.flag_or("enable_confidence_head", true)) return;
    const bool with_markov = json.flag_or("confidence_head_with_markov", true);
    if (with_markov && markov_rank == 0)
      json.refuse("markov_rank", 0, "1 or more, since \"confidence_head_with_markov\" is true");
    confidence_inputs = hidden_size + (with_markov ? markov_rank : 0);
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
