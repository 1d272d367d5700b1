// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/block_draft_model.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/files/gguf_metadata.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/files/tensor_source.hpp"
#include "espalier/model/files/whole_file.hpp"
#include "espalier/model/llama/block_sight.hpp"
#include "espalier/model/llama/draft_kind.hpp"
#include "espalier/model/llama/gguf_config.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

//! The shape of a block draft, as the config.json beside its weights gives it, or a GGUF file: a transformer with the
//! target's hidden size. All dimensions of its heads must be rotated.
//!
//! Six layouts are read: the library's own, whose "model_type" is "espalier_block"; DFlash's, as z-lab publishes it
//! ("dflash_config", or DFlash in "architectures") and as speculators writes it ("speculators_model_type"); DFlash2's,
//! which is DFlash's with convolutions and a selector, in both of these; DSpark's and XPress's as speculators writes
//! them, which are DFlash's with a Markov head and with a refiner; and the GGUF files that llama.cpp's converter makes
//! of any of these but the last ("general.architecture" is "dflash").
//!
//! Errors      model_error that names the file, the key, its value and what is allowed
//! Source      dflash 0.1.0, model.py; speculators 0.9.0, models/dflash, models/dflash2, models/dspark and
//!             models/xpress; llama-cpp-python 0.3.36, llama.cpp's src/models/dflash.cpp and conversion/qwen.py
struct block_draft_config : model_config {
  //! Kinds of Markov heads. A Markov head adds to the logits of a row the product of its output matrix with a vector of
  //! markov_rank numbers; the kind says which vector.
  enum class markov_kind {
    vanilla,  //!< the embedding of the token before, of a table that the head has
    gated,    //!< that embedding, times a gate for each number; gates depend on the row's state and on the embedding
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

  int selector_rank = 0;        //!< rank of DFlash2's selector; 0: there is none
  int selector_candidates = 0;  //!< number of tokens of a row that the selector chooses among: those with the greatest
                                //!< logits. Other tokens are not drafted

  int refiner_rank = 0;   //!< rank of XPress's refiner; 0: there is none
  int refiner_inner = 0;  //!< numbers between the two products of its MLP

  bool causal = false;           //!< in layers without a window, a row sees no later row of its block
  bool windowed_causal = false;  //!< in layers with a window, likewise
  //! Layers with a window: true if a row sees the last `window` tokens before the pending token, and rows of its block
  //! at any distance; false if it sees what is less than `window` positions from itself.
  bool window_before_block = false;

  float output_scale = 1.0F;  //!< logits are multiplied by it
  float output_cap = 0.0F;    //!< then they become cap * tanh(logit / cap); 0: they stay
  std::string where;          //!< the file, for messages

  bool is_dflash() const { return mask_token >= 0; }
  //! Returns whether rows are corrected by path.
  bool corrects() const { return markov_rank > 0 || selector_rank > 0 || refiner_rank > 0; }
  //! Numbers of a row that gates or a recurrent unit read from its state.
  int markov_gates() const {
    return markov == markov_kind::vanilla ? 0 : (markov == markov_kind::gated ? 1 : 3) * markov_rank;
  }
  //! Numbers of the path that gates read: of the token before, and for a recurrent unit of its state before.
  int path_inputs() const { return (markov == markov_kind::rnn ? 2 : 1) * markov_rank; }
  //! The first columns of the numbers of the path, and of the row's state, in a file's matrix of gates.
  struct gate_begins {
    int path, state;
  };
  gate_begins gate_columns() const {
    if (markov == markov_kind::gated) return {hidden_size, 0};
    return {0, path_inputs()};
  }
  //! Rows of a pass for one text that drafts `length` tokens. The last `length` of them have logits.
  int rows_of(int length) const { return length + (from_pending ? 0 : 1); }
  //! Whether some layers have a window, or their own order of rows: see sight().
  bool has_windows() const { return std::find(windowed.begin(), windowed.end(), true) != windowed.end(); }
  //! Returns the rule by which rows of a block see positions, in layers with a window or in the others.
  detail::block_sight sight(bool in_windowed) const {
    if (!in_windowed) return {causal, 0, false};
    return {windowed_causal, window < max_positions ? window : 0, window_before_block};
  }
  //! Returns the shape of the transformer alone. What its rows see is said by sight(), not by windows.
  model_config without_windows() const {
    model_config shape = *this;
    shape.windowed.clear();
    return shape;
  }

  //! Reads folder/config.json, or the metadata of a GGUF file.
  static block_draft_config load(const std::string& path) {
    if (!std::filesystem::is_directory(path) && gguf_file::begins_as_one(path)) {
      gguf_file file(path);
      return parse(file);
    }
    return parse(detail::whole_file(path + "/config.json"), path + "/config.json");
  }

  //! Reads the text of a config.json; `where` names it in messages.
  static block_draft_config parse(std::string_view text, const std::string& where) {
    const nlohmann::json object = detail::parse_json_object(text, where);
    const detail::json_reader json(object, where);
    block_draft_config config =
        json.has("speculators_model_type") ? parse_speculators(json)
        : detail::draft_kind_in(object) == draft_kind::block && json.text_or("model_type", "") != "espalier_block"
            ? parse_dflash(json, object)
            : parse_own(json);
    config.where = where;
    return config;
  }

  //! Reads the metadata of a GGUF file.
  static block_draft_config parse(gguf_file& file) {
    const gguf_metadata& data = file.metadata();
    block_draft_config config;
    static_cast<model_config&>(config) = read_gguf_draft_config(file, "dflash");
    config.where = file.where();
    config.require_layers(config.where);
    const auto shape_of = [&](const char* name) {
      const tensor_entry* entry = file.find(name);
      return entry ? entry->shape : std::vector<std::uint64_t>();
    };
    const std::vector<std::uint64_t> markov = shape_of("markov_w1.weight");
    if (markov.size() == 2 && markov[1] <= most_rank) config.markov_rank = static_cast<int>(markov[1]);
    config.from_pending = config.markov_rank > 0 && data.flag_or("dflash.sample_from_anchor", true);
    config.block_length =
        static_cast<int>(data.integer_or("dflash.block_size", 16, config.from_pending ? 1 : 2, most_length));
    if (!shape_of("conf_proj.weight").empty()) config.confidence_inputs = config.hidden_size + config.markov_rank;
    if (!shape_of("selector_hidden.weight").empty()) {
      config.read_selector(config.where, [&](const char* key, int, int high) {
        return static_cast<int>(data.integer(std::string("dflash.") + key, 1, high));
      });
    }
    if (!config.from_pending) --config.block_length;
    config.mask_token = static_cast<token_id>(data.integer("tokenizer.ggml.mask_token_id", 0, config.vocab_size - 1));
    const auto scale = [&](const char* key) {
      const double found = data.number_or(key, 0.0, -1e6, 1e6);  // llama.cpp takes 0 for a scale that is not said
      return found != 0.0 ? static_cast<float>(found) : 1.0F;
    };
    config.embedding_scale = scale("dflash.embedding_scale");
    config.output_scale = scale("dflash.logit_scale");
    config.output_cap = static_cast<float>(data.number_or("dflash.final_logit_softcapping", 0.0, 0.0, 1e6));
    config.causal = config.windowed_causal = data.flag_or("dflash.attention.causal", false);
    const std::string key = "dflash.target_layers";
    const std::vector<std::int64_t> layers = data.integers(key);
    config.take_layers(layers, 1, [&] { data.refuse(key, most_layers, " ascending numbers from 1 on, or fewer"); });
    return config;
  }

 private:
  static constexpr int most_length = 1 << 10;  // rows of a block
  static constexpr int most_rank = 1 << 14;
  static constexpr int most_mlp_ratio = 64;
  static constexpr int most_mixed = 1 << 28;  // numbers of a refiner's mixer
  static constexpr int most_taps = 64;
  static constexpr int most_layers = 64;  // layers of the target whose states are read

  // Reads the library's own layout.
  static block_draft_config parse_own(const detail::json_reader& json) {
    const auto require_text = [&](const char* key, const char* allowed) {
      if (json.text_or(key, allowed) != allowed) json.refuse(key, *json.find(key), "\"", allowed, "\"");
    };
    if (!json.has("model_type")) raise<model_error>(json.where(), " lacks \"model_type\".");
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
      raise<model_error>(json.where(), ": \"head_dim\" is ", config.head_dim,
                         ", but must be even: all of it is rotated.");
    }
    config.rotary_dims = config.head_dim;
    config.intermediate_size = json.integer("intermediate_size", 1, 1 << 22);
    config.max_positions = json.integer("max_position_embeddings", 1, 1 << 24);
    config.block_length = json.integer("block_size", 2, most_length) - 1;
    config.rope_theta = json.number_or("rope_theta", 10000.0, 1.0, 1e12);
    config.norm_epsilon = static_cast<float>(json.number_or("rms_norm_eps", 1e-5, 0.0, 1.0));
    config.read_layers(json, "target_layers", 1);
    config.layout = layout_type::eagle3;
    config.has_embedding = config.has_head = false;
    return config;
  }

  // Reads z-lab's layout: a Qwen3 config, with DFlash's own keys in "dflash_config" or beside the other keys.
  static block_draft_config parse_dflash(const detail::json_reader& json, const nlohmann::json& object) {
    nlohmann::json layer = object, own = object;
    layer.erase("architectures");
    if (const nlohmann::json* inner = json.find("dflash_config")) {
      if (!inner->is_object()) json.refuse("dflash_config", *inner, "an object");
      own.update(*inner);
    }
    const detail::json_reader added(own, json.where());
    for (const char* key : {"use_swa", "attention_value_scale"}) {
      if (added.has(key) && *added.find(key) != false && *added.find(key) != 1.0)
        added.refuse(key, *added.find(key), "missing: DFlash's own classes do not know it");
    }
    block_draft_config config = of_layer(layer, json.where());
    config.embedding_scale = static_cast<float>(added.number_or("input_embedding_scale", 1.0, -1e6, 1e6));
    config.output_scale = static_cast<float>(added.number_or("output_multiplier", 1.0, -1e6, 1e6));
    config.output_cap = static_cast<float>((std::max)(0.0, added.number_or("final_logit_softcapping", 0.0, -1e6, 1e6)));
    config.causal = json.flag_or("is_causal", false);
    config.windowed_causal = json.flag_or("is_causal", true);
    config.block_length = added.integer_or("block_size", 16, 2, most_length);
    if (added.has("selector_rank") || added.has("conv_kernel_size")) {
      config.read_selector(json.where(), [&](const char* key, int, int high) { return added.integer(key, 1, high); });
    }
    --config.block_length;
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
    const bool is_dflash2 = type == "dflash2";
    if (type == "peagle") raise<model_error>(json.where(), " is of a P-EAGLE head: parallel_head_model reads it.");
    if (type != "dflash" && type != "dspark" && type != "xpress" && !is_dflash2) {
      json.refuse("speculators_model_type", *json.find("speculators_model_type"),
                  "\"dflash\", \"dflash2\", \"dspark\" or \"xpress\"");
    }
    const nlohmann::json layer = detail::speculators_layer(json);
    if (detail::json_reader(layer, json.where()).flag_or("is_causal", false))
      json.refuse("is_causal", true, "false: speculators' classes do not read it");
    block_draft_config config = of_layer(layer, json.where() + ": \"transformer_layer_config\"");
    const int columns = json.integer_or("draft_vocab_size", config.vocab_size, 1, config.vocab_size);
    if (columns != config.vocab_size) config.head_size = columns;
    if (is_dflash2 && config.head_size > 0)
      json.refuse("draft_vocab_size", columns, config.vocab_size, ", all tokens, in a DFlash2 block");
    config.windowed_causal = !json.flag_or("sliding_window_non_causal", is_dflash2);
    config.window_before_block = true;
    config.from_pending = json.flag_or("sample_from_anchor", type == "dspark");
    config.block_length = json.integer_or("block_size", 8, config.from_pending ? 1 : 2, most_length);
    if (is_dflash2) {
      config.read_selector(
          json.where(), [&](const char* key, int unsaid, int high) { return json.integer_or(key, unsaid, 1, high); });
    }
    if (!config.from_pending) --config.block_length;
    if (type == "dspark") config.read_markov_head(json);
    if (type == "xpress") config.read_refiner(json);
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
    config.require_layers(where);
    config.layout = layout_type::eagle3;
    config.has_embedding = config.has_head = config.tied_embeddings = false;
    return config;
  }

  void require_layers(const std::string& file) const {
    if (rotary_dims == head_dim) return;
    raise<model_error>(file, ": \"partial_rotary_factor\" has ", rotary_dims, " of ", head_dim,
                       " dimensions of a head rotated, but those of a block draft must all be.");
  }

  // Reads the convolutions and the selector of DFlash2 with read(key, what speculators writes if it is not said,
  // highest allowed). block_length counts the pending token's row.
  template <class ReadT>
  void read_selector(const std::string& file, const ReadT& read) {
    conv_taps = read("conv_kernel_size", 2, most_taps);
    conv_group = read("conv_group_size", 16, 1 << 20);
    selector_rank = read("selector_rank", 256, most_rank);
    selector_candidates = read("selector_top_k", 16, vocab_size);
    if (hidden_size % conv_group != 0) {
      raise<model_error>(file, ": \"conv_group_size\" is ", conv_group, ", but must divide the hidden size, ",
                         hidden_size, ".");
    }
    if (conv_taps > block_length) {
      raise<model_error>(file, ": \"conv_kernel_size\" is ", conv_taps, ", but must be at most \"block_size\", ",
                         block_length, ".");
    }
  }

  // Reads DSpark's keys.
  void read_markov_head(const detail::json_reader& json) {
    markov_rank = json.integer_or("markov_rank", 256, 0, most_rank);
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

  // Reads XPress's keys. "num_jacobi_passes" says how often an engine that drafts a chain corrects all rows at once,
  // each time for the tokens that it chose the time before. Rows of a tree are corrected for the tokens of their own
  // paths, which is where such passes end: the number changes nothing, and is only checked.
  void read_refiner(const detail::json_reader& json) {
    refiner_rank = json.integer_or("xpress_rank", 256, 1, most_rank);
    refiner_inner = refiner_rank * json.integer_or("xpress_mlp_ratio", 2, 1, most_mlp_ratio);
    json.integer_or("num_jacobi_passes", 6, 1, most_length);
    const int rows = rows_of(block_length);
    if (refiner_rank > most_mixed / rows / rows) {
      json.refuse("xpress_rank", refiner_rank, "at most ", most_mixed / rows / rows, " with a \"block_size\" of ",
                  rows);
    }
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
    const nlohmann::json* layers = json.find(key);
    if (!layers) raise<model_error>(json.where(), " lacks \"", key, "\".");
    const auto refuse = [&] {
      json.refuse(key, *layers, "a list of one to ", most_layers, " ascending numbers from ", first, " on");
    };
    if (!layers->is_array()) refuse();
    std::vector<std::int64_t> numbers;
    for (const nlohmann::json& layer : *layers) {
      if (!layer.is_number_integer()) refuse();
      numbers.push_back(layer.get<std::int64_t>());
    }
    take_layers(numbers, first, refuse);
  }

  // Sets hidden_layers from numbers of which `first` means the target's first layer; calls refuse() for others.
  template <class RefuseT>
  void take_layers(const std::vector<std::int64_t>& numbers, int first, const RefuseT& refuse) {
    if (numbers.empty() || numbers.size() > static_cast<std::size_t>(most_layers)) refuse();
    for (const std::int64_t number : numbers) {
      if (number < first || number > 1 << 12) refuse();
      const int index = static_cast<int>(number) - first;
      if (!hidden_layers.empty() && index <= hidden_layers.back()) refuse();
      hidden_layers.push_back(index);
    }
  }
};

namespace detail {

// Checks that a block draft can follow a target, by the target's config().
//
// Errors      model_error that names what does not fit
template <class TargetT>
void check_block_draft_target(const block_draft_config& config, const TargetT& target) {
  const model_config& other = target.config();
  const auto refuse = [&](const char* key, int own, int others, const char* what) {
    std::string target_file;
    if constexpr (requires { target.where(); }) target_file = target.where() + " ";
    raise<model_error>(config.where, ": \"", key, "\" is ", own, ", but the target ", target_file, "has ", others, " ",
                       what, ".");
  };
  if (config.hidden_size != other.hidden_size)
    refuse("hidden_size", config.hidden_size, other.hidden_size, "numbers in a hidden state");
  if (config.hidden_layers.back() >= other.n_layers)
    refuse("target_layers", config.hidden_layers.back() + 1, other.n_layers, "layers");
  if (config.is_dflash() && config.vocab_size != other.vocab_size)
    refuse("vocab_size", config.vocab_size, other.vocab_size, "tokens");
  if (config.is_dflash() && config.hidden_layers.back() == other.n_layers - 1) {
    raise<model_error>(config.where, ": the block draft reads the target's state after its last layer, number ",
                       other.n_layers - 1, ", which DFlash takes after the final norm: that is not read.");
  }
}

}  // namespace detail

}  // namespace espalier
