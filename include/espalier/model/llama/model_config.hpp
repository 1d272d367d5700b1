// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/files/whole_file.hpp"
#include "espalier/model/llama/mixture_shape.hpp"
#include "espalier/model/llama/recurrent_block_shape.hpp"
#include "espalier/model/llama/rope_scaling.hpp"

namespace espalier {

//! The shape of a transformer, as a Hugging Face config.json or a GGUF file gives it. Each difference between families
//! is a flag or a number here, so that one pass runs them all.
//!
//! Errors      model_error that names the file, the key, its value and what is allowed
//! Source      transformers: configuration_llama, _mistral, _qwen2, _qwen3, _gemma, _gemma2, _gemma3, _mistral3,
//!             _gpt_neox, _bamba, _phi3, _olmo2, _olmo3, _granite, _smollm3, _glm4,
//!             _mixtral, _qwen3_moe, _gpt_oss, _qwen3_next, _qwen3_5, _qwen3_5_moe
struct model_config {
  //! The way in which a file names the tensors. Draft heads: eagle3 and mtp are the names that speculators writes,
  //! eagle3_midlayer those of SafeAILab and SpecForge, mtp_beside those in a target's own files; block drafts have the
  //! names of eagle3, too. gpt_oss_mxfp4: as gpt_oss, with the experts' weights and their exponents in two tensors of
  //! bytes. qwen3_5_beside_vision: as qwen3_5, in a file that also holds a part that sees pictures.
  enum class layout_type {
    llama,
    gemma2,
    gpt_neox,
    bamba,
    glm4,
    mixtral,
    gpt_oss,
    gpt_oss_mxfp4,
    qwen3_next,
    qwen3_5,
    qwen3_5_beside_vision,
    gguf,
    gguf_gpt_oss,
    gguf_qwen3_next,
    gguf_qwen3_5,
    gguf_eagle3,
    eagle3,
    eagle3_midlayer,
    mtp,
    mtp_beside
  };

  std::string family = "llama";  //!< as the file calls it
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
  rope_scaling scaling{};
  double local_rope_theta = 0.0;  //!< rope_theta of the layers in `windowed`, which then have no scaling; 0: they have
                                  //!< the rope_theta and the scaling of the other layers
  std::vector<bool> unrotated{};  //!< [n_layers] whether a layer rotates no dimension; empty: all layers rotate

  float norm_epsilon = 1e-5F;
  bool layer_norm = false;            //!< LayerNorm with biases, not RMSNorm
  bool query_key_norm = false;        //!< heads of queries and keys are normalised
  bool whole_query_key_norm = false;  //!< if query_key_norm: all query heads of a token are normalised as one row, and
                                      //!< so are its key heads
  bool input_norms = true;            //!< attention and MLP read the stream normalised; false: they read it as it is
  bool output_norms = false;  //!< the outputs of attention and MLP are normalised before they are added to the stream

  bool tied_embeddings = false;
  bool query_bias = false;  //!< biases of the query, key and value projections
  bool attention_out_bias = false;
  bool mlp_bias = false;
  bool gated_mlp = true;           //!< the MLP multiplies the activation of one product by another product; false: it
                                   //!< applies GELU to a single product
  bool gelu_gate = false;          //!< the gate's activation is GELU by tanh, not SiLU
  bool parallel_residual = false;  //!< attention and MLP both read the layer's input

  float embedding_scale = 1.0F;
  float residual_scale = 1.0F;   //!< factor of the outputs of attention and MLP when they are added to the stream; 1
                                 //!< if they are normalised
  float attention_scale = 0.0F;  //!< factor of the scores; 0: 1 / sqrt(head_dim)
  float attention_cap = 0.0F;    //!< scores become cap * tanh(score / cap); 0: they stay
  float logit_cap = 0.0F;        //!< logits likewise
  bool attention_gate = false;   //!< the query projection also gives a gate for each output of attention, which is
                                 //!< multiplied by the gate's sigmoid
  bool attention_sinks = false;  //!< each query head has a number that counts as the score of a token without a value
  float logit_divisor = 1.0F;    //!< logits are divided by it: detail::model_tensors divides the scale of the final
                                 //!< norm by it

  int window = 0;                //!< tokens that a row of a layer in `windowed` sees, its own included; 0: all
  std::vector<bool> windowed{};  //!< [n_layers] whether a layer has the window; empty: none has

  //! Convolutions over the rows of a sequence in a pass, before and after attention and before and after the MLP. Each
  //! number of a row becomes a sum over the row's own number and those of the rows before it, conv_taps in all, with
  //! factors that are the weights' plus what the normalised row gives for its group of conv_group numbers. 0: there
  //! are none.
  int conv_taps = 0;
  int conv_group = 1;

  bool paired_input = false;  //!< the attention of the first layer reads, in place of the normalised stream, rows of
                              //!< 2 * hidden_size numbers that the owner of the pass writes
  bool has_embedding = true;  //!< false: the embedding of another model is used
  bool has_head = true;       //!< false: the output matrix of another model is used
  int head_size = 0;          //!< number of tokens that have a row of the output matrix; 0: all
  //! Tokens whose rows of the output matrix are loaded, ascending: logits then have a column for each of these. Empty:
  //! all. No file says this: see with_head_tokens().
  std::vector<token_id> head_tokens{};

  recurrent_block_shape recurrence{};  //!< shape of the blocks of the layers in `recurrent`
  std::vector<bool> recurrent{};  //!< [n_layers] whether a layer has a recurrent block instead of attention; empty:
                                  //!< none has

  mixture_shape mixture{};       //!< shape of the mixtures of the layers in `mixtures`
  std::vector<bool> mixtures{};  //!< [n_layers] whether a layer has a mixture of experts for an MLP; empty: none has

  layout_type layout = layout_type::llama;
  std::string tensor_prefix{};  //!< begins the name of every tensor, in a file that holds more than the language model
  bool paired_rotary = false;   //!< in the file, two rows of queries or keys that are rotated together stand side by
                                //!< side
  bool joined_projections = false;  //!< in the file, query, key and value are one matrix, rows in that order
  bool joined_gate = false;         //!< in the file, gate and up are one matrix, rows in that order
  bool norms_less_one = false;      //!< the file holds the scale of each norm minus 1, but not of a recurrent block's
  int draft_layers = 0;             //!< layers behind the last one in the file, which only draft and are not read

  int query_size() const { return n_heads * head_dim; }
  int kv_size() const { return n_kv_heads * head_dim; }
  //! Number of outputs of an attention layer's projection: queries, keys, values and, if there are any, gates.
  int projected_size() const { return (attention_gate ? 2 : 1) * query_size() + 2 * kv_size(); }
  //! Number of scales of the norm of queries, and of the norm of keys.
  int query_norm_size() const { return whole_query_key_norm ? query_size() : head_dim; }
  int key_norm_size() const { return whole_query_key_norm ? kv_size() : head_dim; }
  //! Returns whether the products of attention and MLP are added to the stream as they are.
  bool adds_products() const { return !output_norms && residual_scale == 1.0F && conv_taps == 0; }
  //! Number of factors that a row gives for the convolutions around attention, or around the MLP.
  int conv_factors() const { return 2 * conv_taps * (hidden_size / conv_group); }
  //! Returns the greatest number of inputs of attention_out in any layer: outputs of attention, or of a recurrent block
  //! if that is more.
  int mixed_size() const { return (std::max)(query_size(), recurrence.inner()); }
  //! Returns the greatest number of inputs of `down` outside of experts that not all rows use.
  int activated_size() const { return (std::max)(intermediate_size, mixture.shared_size); }
  bool is_hybrid() const { return !recurrent.empty(); }
  bool is_recurrent(int layer) const { return is_hybrid() && recurrent[static_cast<std::size_t>(layer)]; }
  bool is_gguf() const { return layout >= layout_type::gguf && layout <= layout_type::gguf_eagle3; }
  bool has_mixtures() const { return !mixtures.empty(); }
  bool is_mixture(int layer) const { return has_mixtures() && mixtures[static_cast<std::size_t>(layer)]; }
  //! Number of layers with attention: a cache holds their keys and values.
  int n_attention_layers() const {
    return n_layers - static_cast<int>(std::count(recurrent.begin(), recurrent.end(), true));
  }
  //! Shape of the states that a cache holds for the recurrent layers; with 0 layers if there are none.
  espalier::recurrent_shape recurrent_shape() const {
    return is_hybrid() ? recurrence.kept(n_layers - n_attention_layers()) : espalier::recurrent_shape{};
  }
  //! Returns the shape of the model that has the first n layers of this one, and its final norm and head.
  //!
  //! Errors      option_error unless n is at least 1 and at most n_layers
  model_config with_first_layers(int n) const {
    require_option("layers", n, 1, n_layers);
    model_config fewer = *this;
    fewer.n_layers = n;
    for (std::vector<bool>* of_layer : {&fewer.unrotated, &fewer.windowed, &fewer.recurrent, &fewer.mixtures})
      if (!of_layer->empty()) of_layer->resize(static_cast<std::size_t>(n));
    const int attending = fewer.n_attention_layers();
    if (attending == 0) {
      raise<option_error>("option layers is ", n, ", but none of the first ", n, " layers of this model (", family,
                          ") has attention: more are needed.");
    }
    if (attending == n) fewer.recurrent.clear(), fewer.recurrence = {};
    return fewer;
  }
  //! Returns the config of a model that gives the logits of these tokens alone; of all, if there are none.
  //!
  //! Errors      option_error unless the tokens ascend and are of the vocabulary
  model_config with_head_tokens(std::span<const token_id> tokens) const {
    model_config fewer = *this;
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      if (tokens[i] >= (i > 0 ? tokens[i - 1] + 1 : 0) && tokens[i] < vocab_size) continue;
      raise<option_error>("option head_tokens has token ", tokens[i], " at place ", i,
                          ": tokens must ascend, from 0 to ", vocab_size - 1, ".");
    }
    fewer.head_tokens.assign(tokens.begin(), tokens.end());
    return fewer;
  }
  //! Returns the number of columns of the logits.
  int columns() const {
    if (!head_tokens.empty()) return static_cast<int>(head_tokens.size());
    return head_size > 0 ? head_size : vocab_size;
  }
  //! Returns whether the embedding is held beside the output matrix, and is not that matrix itself.
  bool holds_embedding() const { return has_embedding && (!tied_embeddings || !head_tokens.empty()); }
  //! Returns the config of the embedding, the final norm and the output matrix alone.
  model_config without_layers() const {
    model_config ends = *this;
    ends.n_layers = 0;
    return ends;
  }
  bool is_unrotated(int layer) const { return !unrotated.empty() && unrotated[static_cast<std::size_t>(layer)]; }
  bool is_windowed(int layer) const { return !windowed.empty() && windowed[static_cast<std::size_t>(layer)]; }
  //! Returns the number of tokens that a row of a layer sees, its own included; 0: all.
  int window_of(int layer) const { return is_windowed(layer) && window < max_positions ? window : 0; }
  //! Returns the number of positions that a backend is made for: its option max_positions, `wanted`, or all positions
  //! of the model if that is 0.
  //!
  //! Errors      option_error if `wanted` is less than 0, or more than the model has
  int positions(int wanted) const {
    require_option("max_positions", wanted, 0, max_positions);
    return wanted > 0 ? wanted : max_positions;
  }
  float score_scale() const {
    return attention_scale > 0.0F ? attention_scale : 1.0F / std::sqrt(static_cast<float>(head_dim));
  }

  //! Reads folder/config.json.
  static model_config load(const std::string& folder) {
    return parse(detail::whole_file(folder + "/config.json"), folder + "/config.json");
  }

  //! Reads the text of a config.json; `where` names it in messages.
  static model_config parse(std::string_view text, const std::string& where) {
    const nlohmann::json object = detail::parse_json_object(text, where);
    const detail::json_reader json(object, where);
    require_readable_weights(json);
    const std::string family = json.text_or("model_type", "");
    if (family == "gemma3" || family == "mistral3" || family == "qwen3_5" || family == "qwen3_5_moe")
      return parse_language_part(json, family);
    model_config config = parse_text_model(json);
    require_language_model(json);
    return config;
  }

 protected:
  void require_whole_groups(const detail::json_reader& json) const {
    if (n_heads % n_kv_heads != 0) {
      raise<model_error>(json.where(), ": \"num_attention_heads\" is ", n_heads,
                         ", but must be a multiple of \"num_key_value_heads\", ", n_kv_heads, ".");
    }
  }

 private:
  static constexpr int most = 1 << 24;

  bool is(const char* name) const { return family == name; }

  static void require_readable_weights(const detail::json_reader& json) {
    const nlohmann::json* found = json.find("quantization_config");
    if (!found) return;
    const std::string method =
        found->is_object() ? detail::json_reader(*found, json.where()).text_or("quant_method", "") : found->dump();
    if (method == "espalier_int8_rows") return;  // the I8 tensors with a scale for each row
    if (method == "mxfp4" && json.text_or("model_type", "") == "gpt_oss") return;
    raise<model_error>(json.where(), ": \"quantization_config\" has the \"quant_method\" \"", method,
                       "\", which is not read: weights of a folder must be F32, F16, BF16, or I8 with a scale for each "
                       "row (espalier_int8_rows), and quantised models are read from GGUF files.");
  }

  // Refuses a model that shares its shape with a language model, but classifies texts or gives vectors for them.
  static void require_language_model(const detail::json_reader& json) {
    const nlohmann::json* names = json.find("architectures");
    if (!names) return;
    const auto writes = [](const nlohmann::json& name) {
      return name.is_string() && name.get_ref<const std::string&>().ends_with("ForCausalLM");
    };
    if (!names->is_array() || std::none_of(names->begin(), names->end(), writes)) {
      json.refuse("architectures", *names, "that of a language model, such as [\"LlamaForCausalLM\"]");
    }
  }

  // Reads the language model of a model that sees pictures, too. Such a file leaves out numbers that are the defaults
  // of the language model's class in transformers.
  static model_config parse_language_part(const detail::json_reader& json, const std::string& family) {
    constexpr const char* sizes[] = {
        "vocab_size",          "hidden_size",         "intermediate_size",      "num_hidden_layers",
        "num_attention_heads", "num_key_value_heads", "max_position_embeddings"};
    const auto usual = [&](const char* type, std::initializer_list<int> numbers) {
      nlohmann::json language{{"model_type", type}};
      for (const int number : numbers)
        language[sizes[language.size() - 1]] = number;
      return language;
    };
    nlohmann::json all = family == "gemma3"     ? usual("gemma3_text", {262208, 2304, 9216, 26, 8, 4, 131072})
                         : family == "mistral3" ? usual("mistral", {32000, 4096, 14336, 32, 32, 8, 131072})
                         : family == "qwen3_5"  ? usual("qwen3_5_text", {248320, 4096, 12288, 32, 16, 4, 32768})
                                                : usual("qwen3_5_moe_text", {248320, 2048, 512, 40, 16, 2, 32768});
    const std::string text_family = all["model_type"];
    const nlohmann::json* part = json.find("text_config");
    if (!part) raise<model_error>(json.where(), " lacks \"text_config\".");
    if (!part->is_object()) json.refuse("text_config", *part, "an object");
    all.update(*part);
    const bool qwen = family.starts_with("qwen");
    if (qwen && json.has("tie_word_embeddings")) all["tie_word_embeddings"] = *json.find("tie_word_embeddings");
    const detail::json_reader text(all, json.where() + ": \"text_config\"");
    require_text(text, "model_type", "", text_family.c_str());
    require_readable_weights(text);
    model_config config = parse_text_model(text);
    config.tensor_prefix = qwen ? "" : "language_model.";
    if (qwen) config.layout = layout_type::qwen3_5_beside_vision;
    return config;
  }

  static model_config parse_text_model(const detail::json_reader& json) {
    model_config config;
    config.family = json.text_or("model_type", "");
    bool known = false;
    for (const char* name :
         {"llama",   "mistral",   "qwen2",   "qwen3",      "gemma",        "gemma2",          "gemma3_text",
          "bamba",   "phi3",      "olmo2",   "olmo3",      "granite",      "smollm3",         "glm4",
          "mixtral", "qwen3_moe", "gpt_oss", "qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"})
      known = known || config.family == name;
    if (known) {
      config.read_llama(json);
    } else if (config.family == "gpt_neox") {
      config.read_gpt_neox(json);
    } else {
      raise<model_error>(
          json.where(), ": \"model_type\" is \"", config.family,
          "\", but must be one of llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3_text, gpt_neox, bamba, phi3, "
          "olmo2, olmo3, granite, smollm3, glm4, mixtral, qwen3_moe, gpt_oss, qwen3_next, qwen3_5_text, "
          "qwen3_5_moe_text, or gemma3, mistral3, qwen3_5 or qwen3_5_moe with a \"text_config\".");
    }
    return config;
  }

  bool has_delta_networks() const { return is("qwen3_next") || is("qwen3_5_text") || is("qwen3_5_moe_text"); }

  void read_sizes(const detail::json_reader& json) {
    vocab_size = json.integer("vocab_size", 1, most);
    hidden_size = json.integer("hidden_size", 1, 1 << 20);
    n_layers = json.integer("num_hidden_layers", 1, 1 << 12);
    n_heads = json.integer("num_attention_heads", 1, 1 << 12);
    // A Qwen3.5 of experts alone has no other MLP.
    intermediate_size = is("qwen3_5_moe_text") ? json.integer_or("moe_intermediate_size", 512, 1, 1 << 22)
                                               : json.integer("intermediate_size", 1, 1 << 22);
    max_positions = json.integer("max_position_embeddings", 1, most);
  }

  // Reads the shape of Llama, or of a family that differs from it in few points.
  void read_llama(const detail::json_reader& json) {
    const bool gemma = family.starts_with("gemma"), qwen2 = is("qwen2"), olmo = is("olmo2") || is("olmo3");
    const bool delta = has_delta_networks();
    read_sizes(json);
    // A key that the file lacks has the family's default in transformers.
    const int unsaid_kv_heads = is("smollm3") || is("qwen3_5_text") ? 4 : is("glm4") || delta ? 2 : n_heads;
    n_kv_heads = json.integer_or("num_key_value_heads", unsaid_kv_heads, 1, n_heads);
    require_whole_groups(json);
    const int unsaid = gemma || delta              ? 256
                       : is("qwen3") || is("glm4") ? 128
                       : is("gpt_oss")             ? 64
                                                   : 0;  // 0: hidden_size / n_heads
    head_dim = json.has("head_dim") || unsaid > 0 ? json.integer_or("head_dim", unsaid, 1, 1 << 12)
                                                  : head_dim_by_division(json);
    const double unsaid_epsilon = is("glm4")                                             ? 1.5625e-7
                                  : is("phi3") || is("mixtral") || is("gpt_oss") || olmo ? 1e-5
                                                                                         : 1e-6;
    norm_epsilon = static_cast<float>(json.number_or("rms_norm_eps", unsaid_epsilon, 0.0, 1.0));
    tied_embeddings = json.flag_or("tie_word_embeddings", gemma || is("smollm3"));
    whole_query_key_norm = olmo;
    query_key_norm = is("qwen3") || is("qwen3_moe") || is("gemma3_text") || olmo || delta;
    joined_projections = is("phi3");
    joined_gate = is("phi3") || is("glm4");
    const bool attention_bias = json.flag_or("attention_bias", is("glm4") || is("gpt_oss"));
    query_bias = attention_bias || qwen2;
    attention_out_bias = attention_bias && !qwen2 && !is("glm4");
    mlp_bias = json.flag_or("mlp_bias", false);
    if (joined_gate && mlp_bias) json.refuse("mlp_bias", true, "false");
    if (olmo) layout = layout_type::gemma2, output_norms = true, input_norms = false;
    if (is("glm4")) layout = layout_type::glm4, output_norms = paired_rotary = true;
    if (is("granite")) read_multipliers(json);
    if (is("smollm3")) read_unrotated(json);
    if (gemma) {
      read_gemma(json);
    } else {
      require_text(json, "hidden_act", "silu", "silu");
    }
    if (delta) {
      read_delta_networks(json);
    } else {
      read_windows(json);
    }
    if (is("bamba")) read_bamba(json);
    if (is("mixtral") || is("qwen3_moe") || is("gpt_oss") || (delta && !is("qwen3_5_text"))) read_mixtures(json);
    if (is("gpt_oss")) read_gpt_oss(json);
    const double unsaid_theta = is("gemma3_text") || is("mixtral") ? 1e6
                                : is("gpt_oss")                    ? 1.5e5
                                : is("smollm3")                    ? 2e6
                                : is("olmo3")                      ? 5e5
                                                                   : 1e4;
    read_rotary(json, "rope_theta", unsaid_theta, "partial_rotary_factor",
                delta                       ? 0.25
                : is("bamba") || is("glm4") ? 0.5
                                            : 1.0);
  }

  // Reads Granite's factors.
  void read_multipliers(const detail::json_reader& json) {
    const auto factor = [&](const char* key) { return static_cast<float>(json.number_or(key, 1.0, 1e-6, 1e6)); };
    embedding_scale = factor("embedding_multiplier");
    attention_scale = factor("attention_multiplier");
    residual_scale = factor("residual_multiplier");
    logit_divisor = factor("logits_scaling");
  }

  // Reads which layers of a SmolLM3 are not rotated: those with a 0 in no_rope_layers, whose name says the opposite.
  void read_unrotated(const detail::json_reader& json) {
    const int period = json.integer_or("no_rope_layer_interval", 4, 1, most);
    for (int layer = 0; layer < n_layers; ++layer)
      unrotated.push_back((layer + 1) % period == 0);
    const nlohmann::json* rotated = json.find("no_rope_layers");
    if (!rotated) return;
    const auto refuse = [&] {
      json.refuse("no_rope_layers", *rotated, "a list with 1 (rotated) or 0 (not rotated) for each of the ", n_layers,
                  " layers");
    };
    if (!rotated->is_array() || rotated->size() != unrotated.size()) refuse();
    for (std::size_t i = 0; i < unrotated.size(); ++i) {
      if ((*rotated)[i] != 0 && (*rotated)[i] != 1) refuse();
      unrotated[i] = (*rotated)[i] == 0;
    }
  }

  // Sets flags[layer] to false for each layer in a list, which must be of at least `least` layers that have `what`.
  void clear_listed(const detail::json_reader& json, const char* key, std::size_t least, const char* what,
                    std::vector<bool>& flags) const {
    const nlohmann::json listed = json.has(key) ? *json.find(key) : nlohmann::json::array();
    const auto is_layer = [&](const nlohmann::json& layer) {
      return layer.is_number_integer() && layer >= 0 && layer < n_layers;
    };
    if (!listed.is_array() || listed.size() < least || !std::all_of(listed.begin(), listed.end(), is_layer))
      json.refuse(key, listed, "a list of ", least > 0 ? "one or more " : "", "layers, from 0 to ", n_layers - 1,
                  ", which have ", what);
    for (const nlohmann::json& layer : listed)
      flags[layer.get<std::size_t>()] = false;
  }

  static void require_parts(const detail::json_reader& json, const char* key, int parts, const char* of, int whole) {
    if (whole % parts != 0)
      raise<model_error>(json.where(), ": \"", key, "\" is ", parts, ", but must divide ", of, ", ", whole, ".");
  }

  // Reads which layers are Mamba-2, and their shape.
  void read_bamba(const detail::json_reader& json) {
    layout = layout_type::bamba;
    recurrence.heads = json.integer_or("mamba_n_heads", 128, 1, 1 << 12);
    recurrence.groups = json.integer_or("mamba_n_groups", 1, 1, recurrence.heads);
    recurrence.state = json.integer_or("mamba_d_state", 256, 1, 1 << 12);
    recurrence.taps = json.integer_or("mamba_d_conv", 4, 1, 64);
    recurrence.convolution_bias = json.flag_or("mamba_conv_bias", true);
    recurrence.projection_bias = json.flag_or("mamba_proj_bias", false);
    const int inner = json.integer_or("mamba_expand", 2, 1, 16) * hidden_size;
    require_parts(json, "mamba_n_heads", recurrence.heads, "\"mamba_expand\" * \"hidden_size\"", inner);
    require_parts(json, "mamba_n_groups", recurrence.groups, "\"mamba_n_heads\"", recurrence.heads);
    recurrence.head_dim = inner / recurrence.heads;
    const nlohmann::json* dim = json.find("mamba_d_head");
    if (dim && *dim != "auto" && *dim != recurrence.head_dim)
      json.refuse("mamba_d_head", *dim, "\"mamba_expand\" * \"hidden_size\" / \"mamba_n_heads\", ",
                  recurrence.head_dim);
    read_steps(json);
    recurrent.assign(static_cast<std::size_t>(n_layers), true);
    clear_listed(json, "attn_layer_indices", 1, "attention", recurrent);
    if (n_attention_layers() == n_layers) recurrent.clear(), recurrence = {};
  }

  // Reads which layers are gated delta networks, and their shape.
  void read_delta_networks(const detail::json_reader& json) {
    layout = is("qwen3_next") ? layout_type::qwen3_next : layout_type::qwen3_5;
    norms_less_one = attention_gate = true;
    if (!json.flag_or("attn_output_gate", true)) json.refuse("attn_output_gate", false, "true");
    constexpr int most_of_each = 1 << 10;
    recurrence.kind = recurrence_kind::gated_delta;
    recurrence.heads = json.integer_or("linear_num_value_heads", 32, 1, most_of_each);
    recurrence.groups = json.integer_or("linear_num_key_heads", 16, 1, recurrence.heads);
    require_parts(json, "linear_num_key_heads", recurrence.groups, "\"linear_num_value_heads\"", recurrence.heads);
    recurrence.head_dim = json.integer_or("linear_value_head_dim", 128, 1, most_of_each);
    recurrence.state = json.integer_or("linear_key_head_dim", 128, 1, most_of_each);
    recurrence.taps = json.integer_or("linear_conv_kernel_dim", 4, 1, 64);
    recurrence.convolution_bias = false;
    const int period = json.integer_or("full_attention_interval", 4, 1, most);
    const nlohmann::json* types = json.find("layer_types");
    const auto refuse = [&] {
      json.refuse("layer_types", *types, "a list of \"full_attention\" and \"linear_attention\", one for each layer");
    };
    if (types && (!types->is_array() || types->size() != static_cast<std::size_t>(n_layers))) refuse();
    for (int layer = 0; layer < n_layers; ++layer) {
      const nlohmann::json& type = types ? (*types)[static_cast<std::size_t>(layer)] : nlohmann::json();
      if (types && type != "linear_attention" && type != "full_attention") refuse();
      recurrent.push_back(types ? type == "linear_attention" : (layer + 1) % period != 0);
    }
    if (n_attention_layers() == 0)
      raise<model_error>(json.where(), ": \"layer_types\", or \"full_attention_interval\", gives no layer attention.");
    if (n_attention_layers() == n_layers) recurrent.clear(), recurrence = {};
  }

  // Reads which layers have a mixture of experts, and its shape.
  void read_mixtures(const detail::json_reader& json) {
    const bool next = is("qwen3_next"), qwen3_5 = is("qwen3_5_moe_text"), qwen = is("qwen3_moe") || next || qwen3_5;
    if (is("mixtral")) layout = layout_type::mixtral;
    // transformers writes the second name where it has read the first.
    const char* experts = json.has("num_experts") ? "num_experts" : "num_local_experts";
    const int unsaid_experts = is("mixtral") ? 8 : next ? 512 : qwen3_5 ? 256 : 128;
    mixture.experts = json.integer_or(experts, unsaid_experts, next ? 0 : 1, 1 << 12);
    if (mixture.experts == 0) return;
    const int used = next ? 10 : qwen ? 8 : is("mixtral") ? 2 : 4;
    mixture.used = json.integer_or("num_experts_per_tok", used, 1, mixture.experts);
    const int unsaid_size = next || qwen3_5 ? 512 : 768;
    mixture.size = qwen ? json.integer_or("moe_intermediate_size", unsaid_size, 1, 1 << 22) : intermediate_size;
    if (next || qwen3_5) mixture.shared_size = json.integer_or("shared_expert_intermediate_size", 512, 1, 1 << 22);
    mixture.sums_to_one = !qwen || qwen3_5 || json.flag_or("norm_topk_prob", next);
    const bool may_be_plain = qwen && !qwen3_5;  // whether some layers may have an MLP without experts
    const int step = may_be_plain ? json.integer_or("decoder_sparse_step", 1, 1, most) : 1;
    for (int layer = 0; layer < n_layers; ++layer)
      mixtures.push_back((layer + 1) % step == 0);
    if (may_be_plain) clear_listed(json, "mlp_only_layers", 0, "a plain MLP", mixtures);
    if (std::find(mixtures.begin(), mixtures.end(), true) == mixtures.end()) mixtures.clear(), mixture = {};
  }

  void read_gpt_oss(const detail::json_reader& json) {
    layout = layout_type::gpt_oss;
    attention_sinks = mixture.biased = true;
    mixture.gain = static_cast<float>(json.number_or("swiglu_alpha", 1.702, 1e-3, 1e3));
    mixture.limit = static_cast<float>(json.number_or("swiglu_limit", 7.0, 1e-3, 1e6));
    if (!json.has("rope_scaling") && !json.has("rope_parameters"))
      raise<model_error>(json.where(), " lacks \"rope_scaling\" or \"rope_parameters\".");
    // Only one method of quantising that is read needs a layout of its own: MXFP4.
    const nlohmann::json* weights = json.find("quantization_config");
    if (!weights || !weights->is_object() || weights->value("quant_method", "") != "mxfp4") return;
    layout = layout_type::gpt_oss_mxfp4;
    constexpr int block = 32;
    if (hidden_size % block != 0 || intermediate_size % block != 0) {
      raise<model_error>(json.where(), ": \"hidden_size\" is ", hidden_size, " and \"intermediate_size\" ",
                         intermediate_size, ", but both must be multiples of ", block, " in a model of MXFP4.");
    }
  }

  // Reads the limits of the time step. transformers writes an infinite number as {"__float__": "Infinity"}.
  void read_steps(const detail::json_reader& json) {
    recurrence.least_step = 0.0F;
    recurrence.greatest_step = std::numeric_limits<float>::infinity();
    const nlohmann::json* limits = json.find("time_step_limit");
    if (!limits) return;
    const bool pair = limits->is_array() && limits->size() == 2 && (*limits)[0].is_number();
    const bool ends = pair && ((*limits)[1].is_number() || (*limits)[1] == nlohmann::json{{"__float__", "Infinity"}});
    if (ends) recurrence.least_step = (*limits)[0].get<float>();
    if (ends && (*limits)[1].is_number()) recurrence.greatest_step = (*limits)[1].get<float>();
    if (!ends || !(recurrence.least_step >= 0.0F && recurrence.least_step <= recurrence.greatest_step))
      json.refuse("time_step_limit", *limits, "two numbers of 0 or more, the lower first");
  }

  void read_gemma(const detail::json_reader& json) {
    norms_less_one = gelu_gate = true;
    embedding_scale = std::sqrt(static_cast<float>(hidden_size));
    const bool first = is("gemma");
    const char* key = first ? "hidden_act" : "hidden_activation";
    // The first Gemma's folders say "gelu", and mean its form by tanh.
    if (!(first && json.text_or(key, "") == "gelu")) require_text(json, key, "gelu_pytorch_tanh", "gelu_pytorch_tanh");
    if (first) return;
    layout = layout_type::gemma2;
    output_norms = true;
    attention_scale = static_cast<float>(1.0 / std::sqrt(json.number_or("query_pre_attn_scalar", 256.0, 1.0, 1e6)));
    const auto cap = [&](const char* name, double usual) {
      return static_cast<float>(json.mentions(name) ? json.number_or(name, 0.0, 1e-3, 1e6) : usual);
    };
    attention_cap = cap("attn_logit_softcapping", is("gemma2") ? 50.0 : 0.0);
    logit_cap = cap("final_logit_softcapping", is("gemma2") ? 30.0 : 0.0);
    if (json.flag_or("use_bidirectional_attention", false)) {
      raise<model_error>(json.where(), ": \"use_bidirectional_attention\" is true, which is not supported.");
    }
  }

  // Reads which layers have a window, and its length: from layer_types, or else by the family's own rule.
  void read_windows(const detail::json_reader& json) {
    bool may = is("mistral") || is("gemma2") || is("gemma3_text") || is("olmo3") || is("gpt_oss") ||
               json.flag_or("use_sliding_window", false);
    if (is("phi3") || is("mixtral")) may = json.has("sliding_window");
    if (is("smollm3")) may = may && json.has("sliding_window");
    const int unsaid = json.mentions("sliding_window") ? 0 : is("gpt_oss") ? 128 : 4096;
    if (may) window = json.integer_or("sliding_window", unsaid, 1, most);
    const int first = is("qwen2") || is("qwen3") ? json.integer_or("max_window_layers", 28, 0, most) : 0;
    const int period = is("gemma2") || is("gpt_oss") ? 2
                       : is("olmo3")                 ? 4
                       : is("gemma3_text")           ? json.integer_or("sliding_window_pattern", 6, 1, most)
                                                     : 0;
    const auto usual = [&](int layer) {
      return is("smollm3") ? is_unrotated(layer) : layer >= first && (period == 0 || (layer + 1) % period != 0);
    };
    if (may) {
      for (int layer = 0; layer < n_layers; ++layer)
        windowed.push_back(usual(layer));
    }
    const nlohmann::json* types = json.find("layer_types");
    if (!types) return;
    const auto refuse = [&] {
      json.refuse("layer_types", *types, "a list of \"full_attention\"", may ? " and \"sliding_attention\"" : "",
                  ", one for each layer");
    };
    if (!types->is_array() || types->size() != static_cast<std::size_t>(n_layers)) refuse();
    for (std::size_t i = 0; i < types->size(); ++i) {
      const bool sliding = (*types)[i] == "sliding_attention";
      if (!(may && sliding) && (*types)[i] != "full_attention") refuse();
      if (may) windowed[i] = sliding;
    }
  }

  void read_gpt_neox(const detail::json_reader& json) {
    layout = layout_type::gpt_neox;
    layer_norm = true;
    gated_mlp = false;
    read_sizes(json);
    n_kv_heads = n_heads;
    head_dim = head_dim_by_division(json);
    norm_epsilon = static_cast<float>(json.number_or("layer_norm_eps", 1e-5, 0.0, 1.0));
    tied_embeddings = json.flag_or("tie_word_embeddings", false);
    parallel_residual = json.flag_or("use_parallel_residual", true);
    query_bias = attention_out_bias = json.flag_or("attention_bias", true);
    mlp_bias = true;
    require_text(json, "hidden_act", "gelu", "gelu");
    read_rotary(json, "rotary_emb_base", 10000.0, "rotary_pct", 0.25);
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

  // Reads the base, the rotated share and the scaling of rotary embeddings. Older folders keep the base and the share
  // at the top level and a rope_scaling object beside them; newer ones keep all three in rope_parameters, which for
  // Gemma 3 and OLMo 3 has an object for each kind of layer.
  void read_rotary(const detail::json_reader& json, const char* base_key, double base, const char* share_key,
                   double share) {
    rope_theta = json.number_or(base_key, base, 1.0, 1e12);
    if (is("olmo3")) local_rope_theta = 5e5;
    if (is("gemma3_text")) local_rope_theta = json.number_or("rope_local_base_freq", 10000.0, 1.0, 1e12);
    share = json.number_or(share_key, share, 0.0, 1.0);
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      const nlohmann::json* found = json.find(key);
      if (!found) continue;
      const auto require_object = [&](const nlohmann::json& value) {
        if (!value.is_object()) json.refuse(key, *found, "an object or null");
      };
      require_object(*found);
      const std::string where = json.where() + ": \"" + key + "\"";
      if (local_rope_theta > 0.0 && found->contains("full_attention")) {
        const nlohmann::json& full = (*found)["full_attention"];
        require_object(full);
        read_scaling(detail::json_reader(full, where), share, json);
        const nlohmann::json local = found->value("sliding_attention", nlohmann::json::object());
        require_object(local);
        const detail::json_reader plain(local, where);
        require_text(plain, "rope_type", "default", "default");
        local_rope_theta = plain.number_or("rope_theta", local_rope_theta, 1.0, 1e12);
      } else {
        read_scaling(detail::json_reader(*found, where), share, json);
      }
    }
    rotary_dims = static_cast<int>(head_dim * share);
    if (rotary_dims % 2 != 0) {
      raise<model_error>(json.where(), ": ", rotary_dims, " of ", head_dim,
                         " dimensions of a head (head_dim) would be rotated, but the number must be even.");
    }
    if (scaling.kind == rope_scaling::kind_type::longrope) require_divisors(json);
  }

  // Reads the object that describes the rotary embedding, and the share of a head's dimensions that are rotated, if it
  // gives one. `all` is the whole config.
  void read_scaling(const detail::json_reader& rope, double& share, const detail::json_reader& all) {
    rope_theta = rope.number_or("rope_theta", rope_theta, 1.0, 1e12);
    share = rope.number_or("partial_rotary_factor", share, 0.0, 1.0);
    const char* key = rope.has("rope_type") ? "rope_type" : "type";
    const std::string type = rope.text_or(key, "default");
    if (!rope.has(key) && rope.has("factor"))
      raise<model_error>(rope.where(), " has a \"factor\" but no \"rope_type\", which must say how it is meant.");
    if (type == "default") return;
    // Older folders of Phi-3 have other names for longrope.
    if (type == "longrope" || type == "su" || (is("phi3") && type == "yarn")) return read_longrope(rope, all);
    scaling.factor = rope.number("factor", 1.0, 1e6);
    if (type == "linear") {
      scaling.kind = rope_scaling::kind_type::linear;
    } else if (type == "llama3") {
      scaling.kind = rope_scaling::kind_type::llama3;
      scaling.original_positions = rope.integer("original_max_position_embeddings", 1, most);
      scaling.low_frequency = rope.number("low_freq_factor", 0.0, 1e6);
      scaling.high_frequency = rope.number("high_freq_factor", scaling.low_frequency, 1e6);
    } else if (type == "yarn" && !rope.has("mscale") && !rope.has("mscale_all_dim")) {
      scaling.kind = rope_scaling::kind_type::yarn;
      scaling.original_positions = rope.integer_or("original_max_position_embeddings", max_positions, 1, most);
      scaling.fast_turns = rope.number_or("beta_fast", 32.0, 1e-3, 1e6);
      scaling.slow_turns = rope.number_or("beta_slow", 1.0, 1e-3, 1e6);
      scaling.whole_pairs = rope.flag_or("truncate", true);
      const double usual = rope_scaling::yarn_amplitude(scaling.factor);
      scaling.amplitude = rope.number_or("attention_factor", usual, 1e-3, 1e3);
    } else {
      rope.refuse(key, *rope.find(key),
                  "\"default\", \"linear\", \"llama3\", \"longrope\" or \"yarn\" without \"mscale\"");
    }
  }

  // Reads longrope. Phi-3 keeps the length of the original context beside the object, not in it.
  void read_longrope(const detail::json_reader& rope, const detail::json_reader& all) {
    for (const char* key : {"short_mscale", "long_mscale"}) {
      if (rope.has(key)) raise<model_error>(rope.where(), " has \"", key, "\", which is not supported.");
    }
    const char* original = "original_max_position_embeddings";
    const int unsaid = rope.integer_or(original, is("phi3") ? 4096 : max_positions, 2, most);
    scaling.kind = rope_scaling::kind_type::longrope;
    scaling.original_positions = all.integer_or(original, unsaid, 2, most);
    scaling.factor = rope.number_or("factor", max_positions / scaling.original_positions, 1e-6, 1e6);
    const double usual = rope_scaling::longrope_amplitude(scaling.factor, scaling.original_positions);
    scaling.amplitude = rope.number_or("attention_factor", usual, 1e-3, 1e3);
    const auto divisors = [&](const char* key) {
      const nlohmann::json* list = rope.find(key);
      if (!list) raise<model_error>(rope.where(), " lacks \"", key, "\".");
      const auto is_divisor = [](const nlohmann::json& number) {
        return number.is_number() && number.get<double>() >= 1e-6 && number.get<double>() <= 1e6;
      };
      if (!list->is_array() || !std::all_of(list->begin(), list->end(), is_divisor))
        rope.refuse(key, *list, "a list of divisors above 0, one for each pair of dimensions");
      return list->get<std::vector<float>>();
    };
    scaling.divisors = divisors("long_factor");
    scaling.short_divisors = divisors("short_factor");
  }

  // Refuses lists of divisors that do not have one for each pair of dimensions that are rotated.
  void require_divisors(const detail::json_reader& json) const {
    const auto pairs = static_cast<std::size_t>(rotary_dims / 2);
    for (const auto& [key, list] :
         {std::pair("long_factor", &scaling.divisors), std::pair("short_factor", &scaling.short_divisors)}) {
      if (list->size() == pairs) continue;
      raise<model_error>(json.where(), ": \"", key, "\" has ", list->size(), " numbers, but must have ", pairs,
                         ", one for each pair of the ", rotary_dims, " dimensions of a head that are rotated.");
    }
  }
};

}  // namespace espalier
