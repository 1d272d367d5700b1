// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/model_files.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/files/tensor_reader.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

namespace detail {

// A reader of the shape of a transformer from the metadata of a GGUF file and the names of its tensors.
class gguf_config_reader {
 public:
  explicit gguf_config_reader(gguf_file& file) : file_(file), data_(file.metadata()) {}

  model_config read() {
    architecture_ = data_.text("general.architecture");
    c_.family = architecture_;
    c_.layout = model_config::layout_type::gguf;
    if (is("gptneox")) {
      c_.layer_norm = c_.mlp_bias = true;
      c_.gated_mlp = false;
    } else if (is("gemma") || is("gemma2") || is("gemma3")) {
      c_.gelu_gate = true;
      c_.output_norms = !is("gemma");
    } else if (is("olmo2") || is("glm4")) {
      c_.output_norms = true;
      c_.input_norms = is("glm4");
    } else if (!is("llama") && !is("qwen2") && !is("qwen3") && !is("phi3") && !is("granite") && !is("smollm3") &&
               !is("qwen3moe") && !is("gpt-oss") && !has_delta_networks()) {
      raise<model_error>(file_.where(), ": \"general.architecture\" is \"", architecture_,
                         "\", but must be one of llama (Mistral, Mixtral and SmolLM2, too), qwen2, qwen3, qwen3moe, "
                         "gemma, gemma2, gemma3, gptneox, phi3 (Phi-4-mini, too), olmo2 (OLMo 3, too), granite, "
                         "smollm3, glm4, gpt-oss, qwen3next, qwen35, qwen35moe.");
    }
    if (is("gpt-oss")) c_.layout = model_config::layout_type::gguf_gpt_oss;
    if (has_delta_networks()) {
      c_.layout =
          is("qwen3next") ? model_config::layout_type::gguf_qwen3_next : model_config::layout_type::gguf_qwen3_5;
      c_.attention_gate = true;
    }
    require_language_model();
    read_sizes();
    read_parts();
    read_mixtures();
    if (has_delta_networks()) read_delta_networks();
    read_gemma();
    read_granite();
    read_windows();
    refuse_relatives();
    read_rotary();
    return c_;
  }

  // Reads the shape of a draft of this architecture, eagle3 or dflash. Its embedding and its output matrix may be the
  // target's, and its rows may be of some tokens alone.
  model_config read_draft(const char* architecture) {
    architecture_ = data_.text("general.architecture");
    if (!is(architecture)) data_.refuse("general.architecture", architecture);
    c_.family = architecture_;
    c_.layout = is("eagle3") ? model_config::layout_type::gguf_eagle3 : model_config::layout_type::gguf;
    const auto has = [&](const char* name) { return file_.find(name) != nullptr; };
    c_.has_embedding = has("token_embd.weight");
    if (!c_.has_embedding) {
      c_.vocab_size = data_.has(key("vocab_size")) ? integer("vocab_size", most)
                                                   : static_cast<int>(data_.texts("tokenizer.ggml.tokens").size());
    }
    read_sizes();
    read_parts();
    c_.paired_rotary = is("eagle3");  // llama.cpp's converter reorders rows for this architecture
    c_.tied_embeddings = is("dflash") && c_.has_embedding && !has("output.weight");
    c_.has_head = c_.tied_embeddings || has("output.weight");
    if (const tensor_entry* tokens = file_.find("d2t"); tokens && tokens->shape.size() == 1)
      c_.head_size = static_cast<int>((std::min)(tokens->shape[0], static_cast<std::uint64_t>(c_.vocab_size)));
    if (c_.tied_embeddings && c_.head_size > 0) {
      raise<model_error>(file_.where(), " lacks tensor \"output.weight\": its embedding has rows for ", c_.vocab_size,
                         " tokens, not for the ", c_.head_size, " of \"d2t\".");
    }
    if (data_.text_or(key("hidden_activation"), "silu") != "silu") data_.refuse(key("hidden_activation"), "silu");
    for (const char* name : {"attention.scale", "attention.value_scale", "hyper_connection.count"}) {
      if (number_or(name, 0.0, -1e6, 1e6) != 0.0) data_.refuse(key(name), "0, or missing");
    }
    if (data_.has(key("rope.dimension_sections"))) {
      const std::vector<std::int64_t> sections = data_.integers(key("rope.dimension_sections"));
      if (std::count_if(sections.begin(), sections.end(), [](std::int64_t n) { return n != 0; }) > 1)
        data_.refuse(key("rope.dimension_sections"), "one section, and zeros");
    }
    read_windows();
    read_rotary();
    return c_;
  }

 private:
  static constexpr int most = 1 << 24;

  bool is(const char* name) const { return architecture_ == name; }
  bool has_delta_networks() const { return is("qwen3next") || is("qwen35") || is("qwen35moe"); }
  std::string key(const char* name) const { return architecture_ + "." + name; }
  int integer(const char* name, int high) const { return static_cast<int>(data_.integer(key(name), 1, high)); }
  int integer_or(const char* name, int fallback, int low, int high) const {
    return static_cast<int>(data_.integer_or(key(name), fallback, low, high));
  }
  // Returns a whole number. The file may also have it as a list with a number for each layer, if all are equal.
  int integer_of_layers(const char* name, int high) const {
    const std::string listed = key(name);
    if (!data_.is_list(listed)) return integer(name, high);
    const std::vector<std::int64_t> numbers = data_.integers(listed);
    const auto same = std::count(numbers.begin(), numbers.end(), numbers.empty() ? 0 : numbers.front());
    if (same != c_.n_layers || numbers.front() < 1 || numbers.front() > high) {
      data_.refuse(listed, "a whole number from 1 to ", high, ", or a list of it for each of the ", c_.n_layers,
                   " layers: layers of different sizes are not supported");
    }
    return static_cast<int>(numbers.front());
  }
  double number_or(const char* name, double fallback, double low, double high) const {
    return data_.number_or(key(name), fallback, low, high);
  }

  // Refuses models that give one vector, or a score, for a whole text.
  void require_language_model() const {
    constexpr const char* why = ": others are no language models";
    if (data_.integer_or(key("pooling_type"), 0, -1, most) > 0) data_.refuse(key("pooling_type"), 0, why);
    if (!data_.flag_or(key("attention.causal"), true)) data_.refuse(key("attention.causal"), "true", why);
  }

  void read_sizes() {
    if (c_.has_embedding) {
      const tensor_entry* embedding = file_.find("token_embd.weight");
      if (!embedding) raise<model_error>(file_.where(), " lacks tensor \"token_embd.weight\".");
      if (embedding->shape.size() != 2 || embedding->shape[0] < 1 || embedding->shape[0] > most) {
        raise<model_error>(file_.where(), ": tensor \"token_embd.weight\" must have two extents, and from 1 to ", most,
                           " rows, one for each token.");
      }
      c_.vocab_size = static_cast<int>(embedding->shape[0]);
    }
    c_.hidden_size = integer("embedding_length", 1 << 20);
    c_.n_layers = integer("block_count", 1 << 12);
    if (has_delta_networks()) c_.draft_layers = integer_or("nextn_predict_layers", 0, 0, c_.n_layers - 1);
    c_.n_layers -= c_.draft_layers;
    c_.n_heads = integer_of_layers("attention.head_count", 1 << 12);
    const char* kv_heads = "attention.head_count_kv";
    c_.n_kv_heads = data_.has(key(kv_heads)) ? integer_of_layers(kv_heads, c_.n_heads) : c_.n_heads;
    if (c_.n_heads % c_.n_kv_heads != 0) {
      raise<model_error>(file_.where(), ": \"", key("attention.head_count"), "\" is ", c_.n_heads,
                         ", but must be a multiple of \"", key("attention.head_count_kv"), "\", ", c_.n_kv_heads, ".");
    }
    if (!data_.has(key("attention.key_length")) && c_.hidden_size % c_.n_heads != 0) {
      raise<model_error>(file_.where(), ": \"", key("embedding_length"), "\" is ", c_.hidden_size,
                         ", but must be a multiple of \"", key("attention.head_count"), "\", ", c_.n_heads, ".");
    }
    c_.head_dim = integer_or("attention.key_length", c_.hidden_size / c_.n_heads, 1, 1 << 12);
    if (integer_or("attention.value_length", c_.head_dim, 1, 1 << 12) != c_.head_dim)
      data_.refuse(key("attention.value_length"), c_.head_dim, ", as the keys' length is");
    // A Qwen3.5 of experts alone has no other MLP.
    c_.intermediate_size =
        integer_of_layers(is("qwen35moe") ? "expert_feed_forward_length" : "feed_forward_length", 1 << 22);
    c_.max_positions = integer("context_length", most);
    const char* epsilon = c_.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    c_.norm_epsilon = static_cast<float>(data_.number(key(epsilon), 0.0, 1.0));
  }

  // Reads which parts the model has, most of them from the names of the first layer's tensors.
  void read_parts() {
    const auto has = [&](const char* name) { return file_.find(name) != nullptr; };
    c_.tied_embeddings = !has("output.weight");
    const bool delta = has_delta_networks();
    c_.joined_projections = is("gptneox") || (!delta && has("blk.0.attn_qkv.weight"));
    c_.joined_gate = is("phi3") || is("glm4");
    c_.query_bias = has(c_.joined_projections ? "blk.0.attn_qkv.bias" : "blk.0.attn_q.bias");
    c_.attention_out_bias = has("blk.0.attn_output.bias");
    c_.mlp_bias = !c_.joined_gate && has("blk.0.ffn_up.bias");
    c_.query_key_norm = delta || has("blk.0.attn_q_norm.weight");
    c_.attention_sinks = is("gpt-oss");
    c_.whole_query_key_norm = is("olmo2");
    c_.parallel_residual = is("gptneox") && data_.flag_or(key("use_parallel_residual"), true);
    // llama.cpp's converter reorders the rows of queries and keys for these architectures, except for GLM-4, whose
    // folders have that order already.
    c_.paired_rotary = is("llama") || is("granite") || is("smollm3") || is("glm4");
    // llama.cpp has this rule in its source, and no key for it.
    for (int layer = 0; is("smollm3") && layer < c_.n_layers; ++layer)
      c_.unrotated.push_back((layer + 1) % 4 == 0);
    if (has("output.bias")) raise<model_error>(file_.where(), ": tensor \"output.bias\" is not supported.");
  }

  // Reads which layers are gated delta networks, and their shape.
  void read_delta_networks() {
    recurrent_block_shape& r = c_.recurrence;
    constexpr int most_of_each = 1 << 10;
    r.kind = recurrence_kind::gated_delta;
    r.heads = integer("ssm.time_step_rank", most_of_each);
    r.groups = integer("ssm.group_count", r.heads);
    r.state = integer("ssm.state_size", most_of_each);
    r.taps = integer("ssm.conv_kernel", 64);
    r.convolution_bias = false;
    r.tiled_heads = !is("qwen3next");
    const int inner = integer("ssm.inner_size", most_of_each * most_of_each);
    if (r.heads % r.groups != 0) data_.refuse(key("ssm.group_count"), "a divisor of ssm.time_step_rank, ", r.heads);
    if (inner % r.heads != 0) data_.refuse(key("ssm.inner_size"), "a multiple of ssm.time_step_rank, ", r.heads);
    r.head_dim = inner / r.heads;
    const std::string listed = key("attention.recurrent_layers");
    const int period = integer_or("full_attention_interval", 4, 1, most);
    std::vector<std::int64_t> flags;
    if (data_.has(listed)) flags = data_.integers(listed);
    const auto n = static_cast<std::size_t>(c_.n_layers);
    if (data_.has(listed) && flags.size() != n + static_cast<std::size_t>(c_.draft_layers))
      data_.refuse(listed, "a list with true or false for each layer");
    for (std::size_t layer = 0; layer < n; ++layer)
      c_.recurrent.push_back(flags.empty() ? (layer + 1) % static_cast<std::size_t>(period) != 0 : flags[layer] != 0);
    if (c_.n_attention_layers() == 0)
      raise<model_error>(file_.where(), ": \"", listed, "\", or \"", key("full_attention_interval"),
                         "\", gives no layer attention.");
    if (c_.n_attention_layers() == c_.n_layers) c_.recurrent.clear(), r = {};
  }

  // Reads the shape of mixtures of experts. The layers that have a router have one.
  void read_mixtures() {
    mixture_shape& m = c_.mixture;
    constexpr int most_experts = 1 << 12;
    const bool always = is("qwen3moe") || is("gpt-oss") || is("qwen3next") || is("qwen35moe");
    m.experts = always ? integer("expert_count", most_experts) : integer_or("expert_count", 0, 0, most_experts);
    if (m.experts == 0) return;
    if (!is("llama") && !always) data_.refuse(key("expert_count"), "0, or missing, in this architecture");
    m.used = integer("expert_used_count", m.experts);
    // Llama's architecture (Mixtral) has one size for all MLPs.
    const char* size = "expert_feed_forward_length";
    m.size = data_.has(key(size)) || always ? integer_of_layers(size, 1 << 22) : c_.intermediate_size;
    if (has_delta_networks()) m.shared_size = integer("expert_shared_feed_forward_length", 1 << 22);
    m.sums_to_one = data_.flag_or(key("expert_weights_norm"), true);
    // llama.cpp takes a missing number for 0.
    const auto allow = [&](const char* name, double usual) {
      const double number = number_or(name, usual, 0.0, 1e6);
      if (number != usual && number != 0.0) data_.refuse(key(name), usual, ", or missing");
    };
    allow("expert_gating_func", 1);  // the softmax
    allow("expert_weights_scale", 1);
    allow("expert_group_count", 1);
    allow("expert_shared_count", 0);
    // The file does not give the numbers of gpt-oss's activation.
    if (is("gpt-oss")) m.biased = true, m.limit = 7.0F, m.gain = 1.702F;
    for (int layer = 0; layer < c_.n_layers; ++layer)
      c_.mixtures.push_back(file_.find("blk." + std::to_string(layer) + ".ffn_gate_inp.weight") != nullptr);
    if (std::count(c_.mixtures.begin(), c_.mixtures.end(), true) == 0)
      raise<model_error>(file_.where(), ": \"", key("expert_count"), "\" is ", m.experts,
                         ", but no layer has a router, such as tensor \"blk.0.ffn_gate_inp.weight\".");
  }

  // Sets the numbers that only Gemma has. The file does not give attention_scale: only the largest Gemma 2 and the
  // largest Gemma 3 have one other than 1 / sqrt(head_dim).
  void read_gemma() {
    if (!c_.gelu_gate) return;
    c_.embedding_scale = std::sqrt(static_cast<float>(c_.hidden_size));
    const bool largest = (is("gemma2") && c_.n_layers == 46) || (is("gemma3") && c_.n_layers == 62);
    if (largest) c_.attention_scale = 1.0F / std::sqrt(static_cast<float>(c_.hidden_size / c_.n_heads));
    if (is("gemma")) return;
    const auto cap = [&](const char* name, double usual) {
      return static_cast<float>(number_or(name, is("gemma2") ? usual : 0.0, 0.0, 1e6));
    };
    if (is("gemma2")) c_.attention_cap = cap("attn_logit_softcapping", 50.0);
    c_.logit_cap = cap("final_logit_softcapping", 30.0);
  }

  // Sets the factors that only Granite has.
  void read_granite() {
    if (!is("granite")) return;
    const auto factor = [&](const char* name, double unsaid) {
      const double found = number_or(name, 0.0, 0.0, 1e6);  // 0 means that the file does not say it
      return static_cast<float>(found > 0.0 ? found : unsaid);
    };
    c_.embedding_scale = factor("embedding_scale", 1.0);
    c_.residual_scale = factor("residual_scale", 1.0);
    c_.attention_scale = factor("attention.scale", 0.0);
    c_.logit_divisor = static_cast<float>(data_.number(key("logit_scale"), 1e-6, 1e6));
  }

  // Refuses models that llama.cpp keeps under one of these architectures, but that have parts which are not supported.
  void refuse_relatives() const {
    if (is("granite") && !data_.flag_or(key("rope.scaling.finetuned"), true))
      data_.refuse(key("rope.scaling.finetuned"), "true: layers without rotation are not supported");
    if (is("glm4") && integer_or("nextn_predict_layers", 0, 0, most) > 0)
      data_.refuse(key("nextn_predict_layers"), "0: layers that only draft are not supported");
    if (is("glm4") && data_.has(key("rope.dimension_sections")))
      raise<model_error>(file_.where(), ": \"", key("rope.dimension_sections"),
                         "\" is of a model that sees pictures, whose rotary embedding is not supported.");
  }

  void read_windows() {
    c_.window = integer_or("attention.sliding_window", is("gemma2") ? 4096 : 0, 0, most);
    if (c_.window == 0) return;
    const std::string pattern = key("attention.sliding_window_pattern");
    if (data_.is_list(pattern)) {
      const std::vector<std::int64_t> flags = data_.integers(pattern);
      if (flags.size() != static_cast<std::size_t>(c_.n_layers)) data_.refuse(pattern, "one for each layer");
      for (const std::int64_t flag : flags)
        c_.windowed.push_back(flag != 0);
      return;
    }
    const int usual = is("gemma2") || is("gpt-oss") ? 2 : is("gemma3") ? 6 : is("olmo2") ? 4 : 0;
    const int period = integer_or("attention.sliding_window_pattern", usual, 0, most);
    for (int layer = 0; layer < c_.n_layers; ++layer)
      c_.windowed.push_back(period == 0 || (layer + 1) % period != 0);
  }

  void read_rotary() {
    c_.rotary_dims = integer_or("rope.dimension_count", c_.head_dim, 0, c_.head_dim);
    if (c_.rotary_dims % 2 != 0) data_.refuse(key("rope.dimension_count"), "even");
    if (c_.paired_rotary && !is("glm4") && c_.rotary_dims != c_.head_dim)
      data_.refuse(key("rope.dimension_count"), c_.head_dim, ", all of a head");
    c_.rope_theta = number_or("rope.freq_base", 10000.0, 1.0, 1e12);
    if (is("olmo2") && c_.window > 0) c_.local_rope_theta = number_or("rope.freq_base_swa", c_.rope_theta, 1.0, 1e12);
    if (is("gemma3")) c_.local_rope_theta = number_or("rope.freq_base_swa", 10000.0, 1.0, 1e12);
    rope_scaling& scaling = c_.scaling;
    // Older files have scale_linear, or a factor without a type: both are linear scaling, as in llama.cpp.
    scaling.factor = number_or("rope.scaling.factor", number_or("rope.scale_linear", 1.0, 1.0, 1e6), 1.0, 1e6);
    const std::string type_key = key("rope.scaling.type");
    const std::string type = data_.text_or(type_key, scaling.factor > 1.0 ? "linear" : "none");
    if (type == "linear") {
      scaling.kind = rope_scaling::kind_type::linear;
    } else if (type == "yarn") {
      scaling.kind = rope_scaling::kind_type::yarn;
      scaling.original_positions = integer_or("rope.scaling.original_context_length", c_.max_positions, 1, most);
      scaling.amplitude = rope_scaling::yarn_amplitude(scaling.factor);
      scaling.amplitude *= number_or("rope.scaling.attn_factor", 1.0, 1e-3, 1e3);
      scaling.whole_pairs = !is("gpt-oss");
      scaling.fast_turns = number_or("rope.scaling.yarn_beta_fast", 32.0, 1e-3, 1e6);
      scaling.slow_turns = number_or("rope.scaling.yarn_beta_slow", 1.0, 1e-3, 1e6);
      for (const char* other : {"rope.scaling.yarn_ext_factor", "rope.scaling.yarn_attn_factor"}) {
        if (number_or(other, 1.0, -1e6, 1e6) != 1.0) data_.refuse(key(other), "1");
      }
    } else if (type != "none" && type != "longrope") {
      data_.refuse(type_key, "none, linear, yarn or longrope");
    }
    read_divisors();
    if (type == "longrope" || file_.find("rope_factors_long.weight")) read_longrope();
  }

  // Reads the divisors of Llama 3's scaled frequencies, which the converter has worked out.
  void read_divisors() {
    const char* name = "rope_freqs.weight";
    if (!file_.find(name)) return;
    require_no_scaling(name);
    c_.scaling.kind = rope_scaling::kind_type::divided;
    c_.scaling.divisors = divisors_of(name);
  }

  // Reads longrope's divisors, which are tensors. The converter has worked out the amplitude. Files of Phi-3 do not
  // name the type.
  void read_longrope() {
    const char* name = "rope_factors_long.weight";
    require_no_scaling(name);
    rope_scaling& scaling = c_.scaling;
    scaling.kind = rope_scaling::kind_type::longrope;
    scaling.original_positions = integer("rope.scaling.original_context_length", most);
    scaling.amplitude = number_or("rope.scaling.attn_factor", 1.0, 1e-3, 1e3);
    scaling.divisors = divisors_of(name);
    scaling.short_divisors = divisors_of("rope_factors_short.weight");
  }

  void require_no_scaling(const char* tensor) const {
    if (c_.scaling.kind != rope_scaling::kind_type::none)
      raise<model_error>(file_.where(), ": tensor \"", tensor, "\" stands beside another scaling.");
  }

  std::vector<float> divisors_of(const char* name) {
    std::vector<float> divisors(static_cast<std::size_t>(c_.rotary_dims / 2));
    tensor_reader(file_, false, "the metadata makes").vector(name, c_.rotary_dims / 2, divisors.data());
    for (const float divisor : divisors) {
      if (!(divisor >= 1e-6F && divisor <= 1e6F))
        raise<model_error>(file_.where(), ": tensor \"", name, "\" has ", divisor, ", but must have divisors above 0.");
    }
    return divisors;
  }

  gguf_file& file_;
  const gguf_metadata& data_;
  std::string architecture_;
  model_config c_;
};

}  // namespace detail

//! Returns the shape of the transformer that a GGUF file holds.
//!
//! Errors      model_error that names the file, the key or tensor, its value and what is allowed
//! Source      https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; llama.cpp, convert_hf_to_gguf.py
inline model_config read_gguf_config(gguf_file& file) {
  return detail::gguf_config_reader(file).read();
}

//! Returns the shape of the transformer of a draft that a GGUF file of llama.cpp holds: "eagle3" or "dflash".
//!
//! Errors      model_error as read_gguf_config
inline model_config read_gguf_draft_config(gguf_file& file, const char* architecture) {
  return detail::gguf_config_reader(file).read_draft(architecture);
}

}  // namespace espalier
