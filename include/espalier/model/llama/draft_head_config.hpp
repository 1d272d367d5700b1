// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/draft_head_model.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/files/gguf_metadata.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/files/whole_file.hpp"
#include "espalier/model/llama/draft_kind.hpp"
#include "espalier/model/llama/gguf_config.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

//! The shape of a draft head, as the config.json beside its weights gives it, or a GGUF file: a transformer of one
//! layer or more. The first layer of an EAGLE-3 head reads a token's embedding beside a state. The one layer of an MTP
//! head reads one row, into which a matrix has projected a token's embedding and a state. A P-EAGLE head is an EAGLE-3
//! head that was trained to draft several tokens in one pass; see parallel_head_model.
//!
//! Six layouts are read: that of SafeAILab and SpecForge, whose config is a Llama's or Qwen3's with "draft_vocab_size"
//! or Eagle3 in "architectures", and whose layer is called midlayer; the three of speculators, whose
//! "speculators_model_type" is "eagle3", "peagle" or "mtp"; tensors in the target's own folder whose names begin with
//! "mtp.", with the target's config; and the GGUF files that llama.cpp's converter makes of EAGLE-3 heads.
//!
//! Errors      model_error that names the file, the key, its value and what is allowed
//! Source      speculators 0.9.0, models/eagle3, models/peagle and models/mtp; SafeAILab/EAGLE, model/cnets.py;
//!             llama-cpp-python 0.3.36, llama.cpp's src/models/eagle3.cpp and conversion/llama.py
struct draft_head_config : model_config {
  //! Layers of the target whose outputs the head reads, from 0, as in llama_options. require_target() sets them for an
  //! MTP head (the last layer), and if the file does not list any: layers 1, n / 2 - 1 and n - 4 of n. Files count the
  //! states between layers: state i is the input of layer i, and the output of layer i - 1.
  std::vector<int> hidden_layers;
  int target_hidden_size = 0;         //!< width of the target's states; 0: hidden_size
  bool norm_together = false;         //!< the states of a token are normalised as one row before they are projected
  bool norm_each = false;             //!< each state of a token is normalised by itself before it is projected
  bool norm_before_residual = false;  //!< the residual stream begins with the normalised state, not with the state
  bool norm_output = false;           //!< the state that a row leaves for later rows is taken after the final norm
  //! P-EAGLE's mask token: it stands where a token is to be drafted, and a learned state before it. -1: the head is no
  //! P-EAGLE head.
  token_id mask_token = -1;
  int block_length = 0;  //!< tokens that a P-EAGLE head drafts in one pass at most
  std::string where;     //!< the file, for messages

  bool is_mtp() const { return layout == layout_type::mtp || layout == layout_type::mtp_beside; }
  bool is_parallel() const { return mask_token >= 0; }
  int state_size() const { return target_hidden_size > 0 ? target_hidden_size : hidden_size; }
  //! Number of numbers that the projection reads: a token's states, or for an MTP head an embedding and a state.
  int projection_inputs() const {
    return is_mtp() ? 2 * hidden_size : static_cast<int>(hidden_layers.size()) * state_size();
  }

  //! Returns the number of tokens that a text may have, if a P-EAGLE head on its target has this number of positions:
  //! the last rows of a block stand behind the text.
  int positions_before_block(int positions) const { return (std::max)(1, positions - block_length + 1); }

  //! Checks that the head is a P-EAGLE head, or that it is none.
  //!
  //! Errors      model_error for a head of the other kind, and for a P-EAGLE head that drafts more tokens at once than
  //!             it has positions
  void require_parallel(bool parallel) const {
    const char* const is = " is of a P-EAGLE head, which drafts all tokens in one pass: parallel_head_model reads it.";
    if (is_parallel() && !parallel) raise<model_error>(where, is);
    if (!parallel) return;
    if (!is_parallel()) raise<model_error>(where, " is of no P-EAGLE head: draft_head_model reads it.");
    if (max_positions < block_length) {
      raise<model_error>(where, ": \"max_position_embeddings\" is ", max_positions,
                         ", but must be at least the tokens that the head drafts at once, ", block_length, ".");
    }
  }

  //! Reads path/config.json, of a head or of a target whose files hold a head; or the metadata of a GGUF file.
  static draft_head_config load(const std::string& path) {
    if (!std::filesystem::is_directory(path) && gguf_file::begins_as_one(path)) {
      gguf_file file(path);
      return parse(file);
    }
    const std::string where = path + "/config.json", text = detail::whole_file(where);
    const nlohmann::json object = detail::parse_json_object(text, where);
    if (detail::draft_kind_in(object) == draft_kind::language_model && has_head_beside(path))
      return as_mtp(of_layer(object, where, true), object, layout_type::mtp_beside);
    return parse(text, where);
  }

  //! Reads the text of a config.json; `where` names it in messages.
  static draft_head_config parse(std::string_view text, const std::string& where) {
    const nlohmann::json object = detail::parse_json_object(text, where);
    const detail::json_reader json(object, where);
    return json.has("speculators_model_type") ? parse_speculators(json, object) : parse_midlayer(json, object);
  }

  //! Reads the metadata of a GGUF file.
  static draft_head_config parse(gguf_file& file) {
    const gguf_metadata& data = file.metadata();
    draft_head_config config;
    static_cast<model_config&>(config) = read_gguf_draft_config(file, "eagle3");
    config.where = file.where();
    config.require_no_windows(config.where);
    if (config.n_layers != 1) data.refuse("eagle3.block_count", "1");
    config.paired_input = true;
    if (config.head_size == 0) config.head_size = config.vocab_size;
    config.target_hidden_size = static_cast<int>(data.integer("eagle3.target_hidden_size", 1, 1 << 20));
    config.norm_before_residual = data.flag_or("eagle3.norm_before_residual", false);
    config.norm_together = data.flag_or("eagle3.norm_before_fc", false);
    const std::string key = "eagle3.target_layers";
    const std::vector<std::int64_t> layers = data.integers(key);
    for (const std::int64_t layer : layers) {
      if (layer < 1 || layer > 1 << 12 || layers.size() > most_layers)
        data.refuse(key, "at most ", static_cast<int>(most_layers), " numbers from 1 on");
      config.hidden_layers.push_back(static_cast<int>(layer) - 1);
    }
    return config;
  }

  //! Checks that the head can follow a target of this shape, and sets hidden_layers if the file does not list them.
  //! `target_where` names the target's file.
  //!
  //! Errors      model_error that names both files and the number that does not fit
  void require_target(const model_config& target, const std::string& target_where) {
    const auto refuse = [&](const char* key, int own, const char* what, int others) {
      raise<model_error>(where, ": \"", key, "\" is ", own, ", but the target ", target_where, " has ", others, " ",
                         what, ".");
    };
    if (state_size() != target.hidden_size) {
      refuse(target_hidden_size > 0 ? "target_hidden_size" : "hidden_size", state_size(), "numbers in a hidden state",
             target.hidden_size);
    }
    if (vocab_size != target.vocab_size) refuse("vocab_size", vocab_size, "tokens", target.vocab_size);
    if (is_mtp()) hidden_layers = {target.n_layers - 1};
    if (hidden_layers.empty()) {
      if (target.n_layers < 5) {
        raise<model_error>(where, " does not say which states it reads, and its kind reads those before layers 2, ",
                           target.n_layers / 2, " and ", target.n_layers - 3, ", but the target ", target_where,
                           " has only ", target.n_layers, " layers.");
      }
      hidden_layers = {1, target.n_layers / 2 - 1, target.n_layers - 4};
    }
    for (const int layer : hidden_layers) {
      if (layer >= target.n_layers) refuse("eagle_aux_hidden_state_layer_ids", layer + 1, "layers", target.n_layers);
    }
    if (!has_embedding && hidden_size != target.hidden_size) {
      raise<model_error>(where, " lacks an embedding of its own (embed_tokens.weight), and that of the target ",
                         target_where, " has ", target.hidden_size, " numbers a token, not ", hidden_size, ".");
    }
  }

 private:
  static constexpr std::size_t most_layers = 64;  // layers of the target whose states are read

  static draft_head_config parse_midlayer(const detail::json_reader& json, const nlohmann::json& object) {
    if (detail::draft_kind_in(object) != draft_kind::eagle3) {
      raise<model_error>(json.where(), " is of no draft head that is read: it has neither \"speculators_model_type\" ",
                         "nor \"draft_vocab_size\", its \"architectures\" name no Eagle3, and no tensor beside it ",
                         "is called mtp.fc.weight.");
    }
    nlohmann::json layer = object;
    layer.erase("architectures");
    draft_head_config config = of_layer(layer, json.where());
    config.layout = layout_type::eagle3_midlayer;
    if (config.n_layers != 1) json.refuse("num_hidden_layers", config.n_layers, "1: this layout has one midlayer");
    config.read_switches(json);
    if (const nlohmann::json* eagle = json.find("eagle_config")) {
      if (!eagle->is_object()) json.refuse("eagle_config", *eagle, "an object");
      const detail::json_reader inner(*eagle, json.where() + ": \"eagle_config\"");
      config.read_layers(inner);
      if (!inner.flag_or("use_aux_hidden_state", true))
        inner.refuse("use_aux_hidden_state", false, "true: a head on the last state alone is not read");
    }
    return config;
  }

  static draft_head_config parse_speculators(const detail::json_reader& json, const nlohmann::json& object) {
    const std::string type = json.text_or("speculators_model_type", "");
    if (type != "eagle3" && type != "peagle" && type != "mtp") {
      json.refuse("speculators_model_type", *json.find("speculators_model_type"),
                  "\"eagle3\", \"peagle\" or \"mtp\", or that of a block: \"dflash\", \"dflash2\", \"dspark\" or "
                  "\"xpress\"");
    }
    draft_head_config config =
        of_layer(detail::speculators_layer(json), json.where() + ": \"transformer_layer_config\"");
    config.where = json.where();
    if (type == "mtp") return as_mtp(std::move(config), object, layout_type::mtp);
    config.read_switches(json);
    config.read_layers(json);
    if (type == "peagle") config.read_mask(json);
    return config;
  }

  // Reads P-EAGLE's keys. The number of tokens that the head was trained to draft stands among its proposal methods.
  void read_mask(const detail::json_reader& json) {
    mask_token = json.integer("mask_token_id", 0, vocab_size - 1);
    block_length = 8;  // speculators' own number where the file has none
    const nlohmann::json* whole = json.find("speculators_config");
    if (!whole || !whole->is_object()) return;
    const detail::json_reader proposals(*whole, json.where() + ": \"speculators_config\"");
    const nlohmann::json* methods = proposals.find("proposal_methods");
    if (!methods || !methods->is_array() || methods->empty() || !methods->front().is_object()) return;
    block_length = detail::json_reader(methods->front(), json.where() + ": \"proposal_methods\"")
                       .integer_or("speculative_tokens", block_length, 1, 1 << 10);
  }

  // Turns the config of a transformer into that of an MTP head, which has one layer of the same kind.
  static draft_head_config as_mtp(draft_head_config config, const nlohmann::json& object, layout_type layout) {
    const detail::json_reader json(object.contains("text_config") ? object["text_config"] : object, config.where);
    for (const char* key : {"num_nextn_predict_layers", "mtp_num_hidden_layers"}) {
      if (json.integer_or(key, 1, 0, 1 << 12) > 1) json.refuse(key, *json.find(key), "1");
    }
    if (json.flag_or("mtp_use_dedicated_embeddings", false))
      json.refuse("mtp_use_dedicated_embeddings", true, "false: the target's embedding is used");
    config.layout = layout;
    config.n_layers = 1;
    config.recurrent.clear();
    config.recurrence = {};
    if (config.has_mixtures()) config.mixtures.assign(1, true);
    config.paired_input = config.has_embedding = config.has_head = false;
    config.head_size = config.vocab_size;
    config.norm_output = true;
    return config;
  }

  // Reads the config of the head's transformer: that of the target, if the head is in the target's own files.
  static draft_head_config of_layer(const nlohmann::json& layer, const std::string& where, bool is_target = false) {
    draft_head_config config;
    static_cast<model_config&>(config) = model_config::parse(layer.dump(), where);
    const detail::json_reader json(layer, where);
    // Qwen3-Next's and Qwen3.5's layers with attention.
    const bool is_gated = is_target && config.attention_gate;
    if (config.family != "llama" && config.family != "qwen3" && !is_gated) {
      json.refuse("model_type", *json.find("model_type"), is_target ? "that of a Qwen3-Next or a Qwen3.5, " : "",
                  "\"llama\" or \"qwen3\"");
    }
    config.require_no_windows(where);
    config.layout = layout_type::eagle3;
    config.tensor_prefix.clear();
    config.paired_input = true;
    config.tied_embeddings = false;
    config.where = where;
    return config;
  }

  void require_no_windows(const std::string& file) const {
    for (int i = 0; i < n_layers; ++i) {
      if (window_of(i) > 0)
        raise<model_error>(file, ": layer ", i, " has a window of ", window,
                           " tokens, which a draft head must not have.");
    }
  }

  void read_switches(const detail::json_reader& json) {
    head_size = json.integer_or("draft_vocab_size", vocab_size, 1, vocab_size);
    target_hidden_size = json.integer_or("target_hidden_size", 0, 1, 1 << 20);
    norm_together = json.flag_or("norm_before_fc", false);
    norm_each = json.flag_or("fc_norm", false);
    norm_before_residual = json.flag_or("norm_before_residual", false);
    norm_output = json.flag_or("norm_output", false);
    if (norm_together && norm_each)
      raise<model_error>(json.where(), ": \"norm_before_fc\" and \"fc_norm\" are both true, but exclude one another.");
  }

  void read_layers(const detail::json_reader& json) {
    const nlohmann::json* layers = json.find("eagle_aux_hidden_state_layer_ids");
    if (!layers) return;
    const auto refuse = [&] {
      json.refuse("eagle_aux_hidden_state_layer_ids", *layers, "a list of one to ", static_cast<int>(most_layers),
                  " numbers from 1 on: the state before the first layer is not kept");
    };
    if (!layers->is_array() || layers->empty() || layers->size() > most_layers) refuse();
    for (const nlohmann::json& layer : *layers) {
      if (!layer.is_number_integer() || layer < 1 || layer > 1 << 12) refuse();
      hidden_layers.push_back(layer.get<int>() - 1);
    }
  }
};

}  // namespace espalier
