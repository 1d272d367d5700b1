// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/model_config.hpp"

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"

namespace {

using namespace espalier;
using Catch::Matchers::ContainsSubstring;

nlohmann::json llama() {
  return {{"model_type", "llama"},   {"vocab_size", 100},        {"hidden_size", 32},
          {"num_hidden_layers", 2},  {"num_attention_heads", 4}, {"num_key_value_heads", 2},
          {"intermediate_size", 64}, {"hidden_act", "silu"},     {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-6},    {"rope_theta", 500000.0},   {"tie_word_embeddings", true}};
}

nlohmann::json neox() {
  return {
      {"model_type", "gpt_neox"}, {"vocab_size", 100},       {"hidden_size", 32},    {"num_hidden_layers", 2},
      {"num_attention_heads", 2}, {"intermediate_size", 64}, {"hidden_act", "gelu"}, {"max_position_embeddings", 128}};
}

model_config parse(const nlohmann::json& json) {
  return model_config::parse(json.dump(), "config.json");
}

void refused(nlohmann::json json, const char* key, const nlohmann::json& value, const std::string& words) {
  json[key] = value;
  INFO(json.dump());
  CHECK_THROWS_WITH(parse(json),
                    ContainsSubstring("config.json") && ContainsSubstring(key) && ContainsSubstring(words));
  CHECK_THROWS_AS(parse(json), model_error);
}

}  // namespace

TEST_CASE("a Llama config is read") {
  const model_config c = parse(llama());
  CHECK(c.family == "llama");
  CHECK(c.gated_mlp);
  CHECK_FALSE(c.layer_norm);
  CHECK(c.head_dim == 8);
  CHECK(c.rotary_dims == 8);
  CHECK(c.query_size() == 32);
  CHECK(c.kv_size() == 16);
  CHECK(c.rope_theta == 500000.0);
  CHECK(c.norm_epsilon == 1e-6F);
  CHECK(c.tied_embeddings);
  CHECK_FALSE(c.query_bias);
  CHECK_FALSE(c.query_key_norm);
  nlohmann::json biased = llama();
  biased["attention_bias"] = biased["mlp_bias"] = true;
  biased.erase("num_key_value_heads");
  CHECK(parse(biased).query_bias);
  CHECK(parse(biased).attention_out_bias);
  CHECK(parse(biased).mlp_bias);
  CHECK(parse(biased).n_kv_heads == 4);
}

TEST_CASE("Qwen configs are Llama's with biases, or with norms of queries and keys") {
  nlohmann::json qwen = llama();
  qwen["model_type"] = "qwen2";
  CHECK(parse(qwen).query_bias);
  CHECK_FALSE(parse(qwen).attention_out_bias);
  qwen["model_type"] = "qwen3";
  qwen["head_dim"] = 16;
  CHECK(parse(qwen).query_key_norm);
  CHECK_FALSE(parse(qwen).query_bias);
  CHECK(parse(qwen).query_size() == 64);
  nlohmann::json unsaid = qwen;
  unsaid.erase("head_dim");
  CHECK(parse(unsaid).head_dim == 128);
  refused(qwen, "layer_types", {"full_attention", "sliding_attention"}, "a list of \"full_attention\", one for each");
  qwen["layer_types"] = {"full_attention", "full_attention"};
  CHECK(parse(qwen).window_of(1) == 0);
  qwen.erase("layer_types");
  qwen["use_sliding_window"] = true;
  qwen["sliding_window"] = 16;
  qwen["max_window_layers"] = 1;
  CHECK(parse(qwen).window_of(0) == 0);
  CHECK(parse(qwen).window_of(1) == 16);
  qwen["layer_types"] = {"sliding_attention", "full_attention"};
  CHECK(parse(qwen).window_of(0) == 16);
  CHECK(parse(qwen).window_of(1) == 0);
  refused(qwen, "layer_types", {"full_attention"}, "one for each layer");
  refused(qwen, "layer_types", {"full_attention", "linear_attention"}, "and \"sliding_attention\"");
}

TEST_CASE("Mistral's layers have a window, unless it is null or longer than the context") {
  nlohmann::json mistral = llama();
  mistral["model_type"] = "mistral";
  mistral["sliding_window"] = 100;
  CHECK(parse(mistral).window_of(0) == 100);
  CHECK(parse(mistral).window_of(1) == 100);
  mistral["sliding_window"] = nullptr;
  CHECK(parse(mistral).window_of(0) == 0);
  mistral["sliding_window"] = 128;
  CHECK(parse(mistral).window_of(0) == 0);
  mistral.erase("sliding_window");
  mistral["max_position_embeddings"] = 5000;
  CHECK(parse(mistral).window_of(0) == 4096);
  refused(mistral, "sliding_window", 0, "from 1 to");
}

TEST_CASE("configs of mixtures of experts say which layers have one, and its shape") {
  nlohmann::json mixtral = llama();
  mixtral["model_type"] = "mixtral";
  model_config c = parse(mixtral);
  CHECK(c.mixture.experts == 8);
  CHECK(c.mixture.used == 2);
  CHECK(c.mixture.size == 64);
  CHECK(c.mixture.sums_to_one);
  CHECK(c.is_mixture(0));
  CHECK(c.is_mixture(1));
  CHECK(c.window_of(0) == 0);
  mixtral.erase("rope_theta");
  CHECK(parse(mixtral).rope_theta == 1e6);
  mixtral["sliding_window"] = 16;
  CHECK(parse(mixtral).window_of(1) == 16);
  mixtral["num_local_experts"] = 4;
  CHECK(parse(mixtral).mixture.experts == 4);
  refused(mixtral, "num_experts_per_tok", 5, "a whole number from 1 to 4");
  refused(mixtral, "num_local_experts", 0, "a whole number from 1 to 4096");

  nlohmann::json qwen = llama();
  qwen["model_type"] = "qwen3_moe";
  qwen["num_hidden_layers"] = 5;
  c = parse(qwen);
  CHECK(c.query_key_norm);
  CHECK_FALSE(c.query_bias);
  CHECK(c.head_dim == 8);
  CHECK(c.mixture.experts == 128);
  CHECK(c.mixture.used == 8);
  CHECK(c.mixture.size == 768);
  CHECK_FALSE(c.mixture.sums_to_one);
  CHECK(c.mixtures == std::vector<bool>(5, true));
  qwen["num_experts"] = 16;
  qwen["num_experts_per_tok"] = 4;
  qwen["moe_intermediate_size"] = 40;
  qwen["norm_topk_prob"] = true;
  qwen["decoder_sparse_step"] = 2;
  c = parse(qwen);
  CHECK(c.mixture.experts == 16);
  CHECK(c.mixture.used == 4);
  CHECK(c.mixture.size == 40);
  CHECK(c.intermediate_size == 64);
  CHECK(c.mixture.sums_to_one);
  CHECK(c.mixtures == std::vector<bool>{false, true, false, true, false});
  qwen["mlp_only_layers"] = {0, 3};
  CHECK(parse(qwen).mixtures == std::vector<bool>{false, true, false, false, false});
  qwen["use_sliding_window"] = true;
  qwen["sliding_window"] = 16;
  CHECK(parse(qwen).window_of(0) == 16);
  refused(qwen, "mlp_only_layers", {1, 5}, "a list of layers, from 0 to 4, which have a plain MLP");
  refused(qwen, "mlp_only_layers", {-1}, "a list of layers");
  refused(qwen, "mlp_only_layers", {0.5}, "a list of layers");
  refused(qwen, "mlp_only_layers", 1, "a list of layers");
  refused(qwen, "decoder_sparse_step", 0, "a whole number from 1");
  refused(qwen, "norm_topk_prob", 1, "true or false");
  qwen["mlp_only_layers"] = {1, 3};
  CHECK_FALSE(parse(qwen).has_mixtures());
  CHECK_FALSE(parse(llama()).has_mixtures());
}

TEST_CASE("a Qwen3-Next config says which layers are delta networks, and has gates and a shared expert") {
  nlohmann::json json = llama();
  json["model_type"] = "qwen3_next";
  json["num_hidden_layers"] = 5;
  model_config c = parse(json);
  CHECK(c.recurrent == std::vector<bool>{true, true, true, false, true});
  CHECK(c.attention_gate);
  CHECK(c.query_key_norm);
  CHECK(c.norms_less_one);
  CHECK(c.head_dim == 256);
  CHECK(c.rotary_dims == 64);
  CHECK(c.projected_size() == 2 * c.query_size() + 2 * c.kv_size());
  CHECK(c.recurrence.kind == recurrence_kind::gated_delta);
  CHECK(c.recurrence.heads == 32);
  CHECK(c.recurrence.groups == 16);
  CHECK(c.recurrence.taps == 4);
  CHECK(c.recurrence.convolved() == 32 * 128 + 2 * 16 * 128);
  CHECK(c.recurrence.projected() == 2 * 32 * 128 + 2 * 16 * 128 + 64);
  CHECK(c.recurrence.group_of(3) == 1);
  CHECK(c.recurrent_shape() == recurrent_shape{4, 32 * 128 * 128, 2 * c.recurrence.convolved() + 64, 3});
  CHECK(c.mixture.experts == 512);
  CHECK(c.mixture.used == 10);
  CHECK(c.mixture.size == 512);
  CHECK(c.mixture.shared_size == 512);
  CHECK(c.mixture.routed_size() == 513);
  CHECK(c.mixture.sums_to_one);
  CHECK(c.mixtures == std::vector<bool>(5, true));
  json["num_experts"] = 0;
  CHECK_FALSE(parse(json).has_mixtures());
  json["num_experts"] = 4;
  json["num_experts_per_tok"] = 2;
  json["mlp_only_layers"] = {1};
  CHECK_FALSE(parse(json).is_mixture(1));
  json["full_attention_interval"] = 2;
  CHECK(parse(json).recurrent == std::vector<bool>{true, false, true, false, true});
  json["layer_types"] = {"full_attention", "linear_attention", "linear_attention", "full_attention", "full_attention"};
  CHECK(parse(json).recurrent == std::vector<bool>{false, true, true, false, false});
  refused(json, "layer_types", {"full_attention"}, "one for each layer");
  refused(json, "layer_types", std::vector<std::string>(5, "sliding_attention"), "one for each layer");
  refused(json, "layer_types", std::vector<std::string>(5, "linear_attention"), "gives no layer attention");
  refused(json, "linear_num_key_heads", 12, "must divide \"linear_num_value_heads\", 32");
  refused(json, "linear_num_value_heads", 2000, "from 1 to 1024");
  refused(json, "attn_output_gate", false, "must be true");
  refused(json, "num_experts_per_tok", 5, "from 1 to 4");
  refused(json, "shared_expert_intermediate_size", 0, "from 1");
  json["layer_types"] = std::vector<std::string>(5, "full_attention");
  CHECK_FALSE(parse(json).is_hybrid());
  CHECK(parse(json).recurrent_shape() == recurrent_shape{});
  CHECK(parse(json).attention_gate);
}

TEST_CASE("a Qwen3.5 config is of a language model, or has one beside a part that sees pictures") {
  nlohmann::json text = llama();
  text["model_type"] = "qwen3_5_text";
  text["num_hidden_layers"] = 4;
  CHECK(parse(text).layout == model_config::layout_type::qwen3_5);
  CHECK_FALSE(parse(text).has_mixtures());
  CHECK(parse(text).n_attention_layers() == 1);
  nlohmann::json whole{{"model_type", "qwen3_5"}, {"tie_word_embeddings", false}, {"text_config", text}};
  CHECK(parse(whole).layout == model_config::layout_type::qwen3_5_beside_vision);
  CHECK(parse(whole).tensor_prefix.empty());
  CHECK_FALSE(parse(whole).tied_embeddings);
  whole.erase("tie_word_embeddings");
  CHECK(parse(whole).tied_embeddings);
  whole["text_config"] = {{"model_type", "qwen3_5_text"}};
  CHECK(parse(whole).hidden_size == 4096);
  CHECK(parse(whole).n_attention_layers() == 8);
  CHECK(parse(whole).n_kv_heads == 4);
  refused(whole, "text_config", {{"model_type", "qwen3_5_moe_text"}}, "must be \"qwen3_5_text\"");
  whole["model_type"] = "qwen3_5_moe";
  whole["text_config"]["model_type"] = "qwen3_5_moe_text";
  const model_config c = parse(whole);
  CHECK(c.mixture.experts == 256);
  CHECK(c.mixture.used == 8);
  CHECK(c.mixture.sums_to_one);
  CHECK(c.intermediate_size == 512);
  CHECK(c.n_kv_heads == 2);
  CHECK(c.mixtures == std::vector<bool>(40, true));
}

TEST_CASE("a gpt-oss config has sinks, biases, limited activations and windows in every other layer") {
  nlohmann::json json = llama();
  json["model_type"] = "gpt_oss";
  json["max_position_embeddings"] = 4096;
  json["num_local_experts"] = 16;
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 32.0}, {"truncate", false}};
  model_config c = parse(json);
  CHECK(c.attention_sinks);
  CHECK(c.query_bias);
  CHECK(c.attention_out_bias);
  CHECK(c.head_dim == 64);
  CHECK(c.mixture.biased);
  CHECK(c.mixture.experts == 16);
  CHECK(c.mixture.used == 4);
  CHECK(c.mixture.size == 64);
  CHECK(c.mixture.sums_to_one);
  CHECK(c.mixture.limit == 7.0F);
  CHECK(c.mixture.gain == 1.702F);
  CHECK(c.mixtures == std::vector<bool>{true, true});
  CHECK(c.window_of(0) == 128);
  CHECK(c.window_of(1) == 0);
  CHECK_FALSE(c.scaling.whole_pairs);
  json["swiglu_limit"] = 5.0;
  CHECK(parse(json).mixture.limit == 5.0F);
  refused(json, "swiglu_limit", 0.0, "a number from");
  json["layer_types"] = {"full_attention", "sliding_attention"};
  CHECK(parse(json).window_of(0) == 0);
  CHECK(parse(json).window_of(1) == 128);
  json["quantization_config"] = {{"quant_method", "mxfp4"}};
  CHECK(parse(json).layout == model_config::layout_type::gpt_oss_mxfp4);
  refused(json, "hidden_size", 48, "but both must be multiples of 32 in a model of MXFP4");
  refused(json, "quantization_config", {{"quant_method", "bitsandbytes"}}, "which is not read");
  refused(llama(), "quantization_config", {{"quant_method", "mxfp4"}}, "which is not read");
  json.erase("rope_scaling");
  CHECK_THROWS_WITH(parse(json), "config.json lacks \"rope_scaling\" or \"rope_parameters\".");
}

TEST_CASE("Gemma configs set what sets them apart") {
  nlohmann::json gemma = llama();
  gemma["model_type"] = "gemma";
  gemma.erase("tie_word_embeddings");
  for (const char* form : {"gelu", "gelu_pytorch_tanh"}) {
    gemma["hidden_act"] = form;
    const model_config c = parse(gemma);
    CHECK(c.gelu_gate);
    CHECK(c.norms_less_one);
    CHECK(c.tied_embeddings);
    CHECK(c.head_dim == 256);
    CHECK(c.embedding_scale == std::sqrt(32.0F));
    CHECK_FALSE(c.output_norms);
    CHECK(c.window_of(0) == 0);
  }
  refused(gemma, "hidden_act", "silu", "must be \"gelu_pytorch_tanh\"");
  gemma["model_type"] = "gemma2";
  gemma["max_position_embeddings"] = 8192;
  model_config c = parse(gemma);
  CHECK(c.output_norms);
  CHECK(c.attention_cap == 50.0F);
  CHECK(c.logit_cap == 30.0F);
  CHECK(c.score_scale() == 0.0625F);
  CHECK(c.window_of(0) == 4096);
  CHECK(c.window_of(1) == 0);
  CHECK_FALSE(c.query_key_norm);
  gemma["attn_logit_softcapping"] = nullptr;
  CHECK(parse(gemma).attention_cap == 0.0F);
  refused(gemma, "final_logit_softcapping", -1.0, "a number from");
  refused(gemma, "hidden_activation", "gelu", "must be \"gelu_pytorch_tanh\"");
  gemma["model_type"] = "gemma3_text";
  gemma["num_hidden_layers"] = 7;
  gemma.erase("rope_theta");
  c = parse(gemma);
  CHECK(c.query_key_norm);
  CHECK(c.logit_cap == 0.0F);
  CHECK(c.is_windowed(4));
  CHECK_FALSE(c.is_windowed(5));
  CHECK(c.is_windowed(6));
  CHECK(c.rope_theta == 1e6);
  CHECK(c.local_rope_theta == 1e4);
  gemma["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}}},
                              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 7e3}}}};
  c = parse(gemma);
  CHECK(c.rope_theta == 5e5);
  CHECK(c.local_rope_theta == 7e3);
  CHECK(c.scaling.frequency(c.rope_theta, 8, 0) == 0.125);
  refused(gemma, "use_bidirectional_attention", true, "not supported");
}

TEST_CASE("a Phi-3 config has joined matrices, and divisors for short and for long contexts") {
  nlohmann::json phi = llama();
  phi["model_type"] = "phi3";
  phi.erase("rms_norm_eps");
  model_config c = parse(phi);
  CHECK(c.joined_projections);
  CHECK(c.joined_gate);
  CHECK(c.norm_epsilon == 1e-5F);
  CHECK(c.window_of(0) == 0);
  CHECK(c.scaling.kind == rope_scaling::kind_type::none);
  phi["sliding_window"] = 100;
  CHECK(parse(phi).window_of(1) == 100);
  phi["original_max_position_embeddings"] = 16;
  phi["rope_theta"] = 10000.0;
  phi["rope_scaling"] = {{"long_factor", {1.0, 2.0, 4.0, 8.0}}, {"short_factor", {1.0, 1.0, 1.5, 2.0}}};
  for (const char* name : {"longrope", "su", "yarn"}) {
    phi["rope_scaling"]["type"] = name;
    c = parse(phi);
    CHECK(c.scaling.frequency(1e4, 8, 3, 17) == Approx(0.001 / 8));
    CHECK(c.scaling.frequency(1e4, 8, 3, 16) == Approx(0.001 / 2));
    CHECK(c.scaling.amplitude == Approx(std::sqrt(1.0 + std::log(8.0) / std::log(16.0))));
  }
  nlohmann::json given = phi;
  given["rope_scaling"]["attention_factor"] = 1.25;
  CHECK(parse(given).scaling.amplitude == 1.25);
  given["original_max_position_embeddings"] = 128;
  given["rope_scaling"].erase("attention_factor");
  CHECK(parse(given).scaling.amplitude == 1.0);
  phi["partial_rotary_factor"] = 0.5;
  CHECK_THROWS_WITH(parse(phi),
                    "config.json: \"long_factor\" has 4 numbers, but must have 2, one for each pair of the 4 "
                    "dimensions of a head that are rotated.");
  phi["rope_scaling"]["long_factor"] = {1.0, 2.0};
  CHECK_THROWS_WITH(parse(phi), ContainsSubstring("\"short_factor\" has 4 numbers, but must have 2"));
  phi["rope_scaling"]["short_factor"] = {1.0, 2.0};
  CHECK(parse(phi).rotary_dims == 4);
  const auto refused_within = [&](const char* key, const nlohmann::json& value, const std::string& words) {
    nlohmann::json scaling = phi["rope_scaling"];
    scaling[key] = value;
    refused(phi, "rope_scaling", scaling, words);
  };
  refused_within("long_factor", {1.0, 0.0}, "a list of divisors above 0");
  refused_within("long_factor", {1.0, "2"}, "a list of divisors above 0");
  refused_within("long_factor", 2.0, "a list of divisors above 0");
  refused_within("short_factor", nullptr, "lacks \"short_factor\"");
  refused_within("long_mscale", 1.2, "has \"long_mscale\", which is not supported");
  refused(phi, "mlp_bias", true, "must be false");
}

TEST_CASE("OLMo 2 and GLM-4 configs say where norms stand, and how heads are rotated") {
  nlohmann::json json = llama();
  json["model_type"] = "olmo2";
  const model_config olmo = parse(json);
  CHECK(olmo.output_norms);
  CHECK_FALSE(olmo.input_norms);
  CHECK(olmo.query_key_norm);
  CHECK(olmo.query_norm_size() == 32);
  CHECK(olmo.key_norm_size() == 16);
  CHECK_FALSE(olmo.adds_products());
  CHECK(olmo.local_rope_theta == 0.0);
  json["model_type"] = "olmo3";
  json["num_hidden_layers"] = 5;
  json["sliding_window"] = 100;
  json["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  model_config third = parse(json);
  CHECK(third.windowed == std::vector<bool>{true, true, true, false, true});
  CHECK(third.rope_theta == 500000.0);
  CHECK(third.local_rope_theta == 500000.0);
  CHECK(third.scaling.kind == rope_scaling::kind_type::linear);
  json.erase("rope_scaling");
  json["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 6e5}}},
                             {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 7e3}}}};
  CHECK(parse(json).rope_theta == 6e5);
  CHECK(parse(json).local_rope_theta == 7e3);
  json.erase("rope_parameters");
  json["model_type"] = "glm4";
  json["head_dim"] = 16;
  const model_config glm = parse(json);
  CHECK(glm.output_norms);
  CHECK(glm.input_norms);
  CHECK(glm.joined_gate);
  CHECK_FALSE(glm.joined_projections);
  CHECK(glm.paired_rotary);
  CHECK(glm.rotary_dims == 8);
  CHECK(glm.query_bias);
  CHECK_FALSE(glm.attention_out_bias);
  CHECK(glm.key_norm_size() == 16);
  json.erase("head_dim");
  json.erase("num_key_value_heads");
  json.erase("rms_norm_eps");
  json["attention_bias"] = false;
  CHECK(parse(json).head_dim == 128);
  CHECK(parse(json).n_kv_heads == 2);
  CHECK(parse(json).norm_epsilon == 1.5625e-7F);
  CHECK_FALSE(parse(json).query_bias);
}

TEST_CASE("a Granite config has factors of embedding, scores, residual and logits") {
  nlohmann::json json = llama();
  json["model_type"] = "granite";
  CHECK(parse(json).score_scale() == 1.0F);
  CHECK(parse(json).adds_products());
  json["embedding_multiplier"] = 12.0;
  json["attention_multiplier"] = 0.125;
  json["residual_multiplier"] = 0.25;
  json["logits_scaling"] = 8;
  const model_config c = parse(json);
  CHECK(c.embedding_scale == 12.0F);
  CHECK(c.score_scale() == 0.125F);
  CHECK(c.residual_scale == 0.25F);
  CHECK(c.logit_divisor == 8.0F);
  CHECK_FALSE(c.adds_products());
  for (const char* key : {"embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"})
    refused(json, key, 0.0, "a number from");
}

TEST_CASE("a SmolLM3 config says which layers are not rotated") {
  nlohmann::json json = llama();
  json["model_type"] = "smollm3";
  json["num_hidden_layers"] = 5;
  json.erase("rope_theta");
  json.erase("tie_word_embeddings");
  const model_config c = parse(json);
  CHECK(c.unrotated == std::vector<bool>{false, false, false, true, false});
  CHECK(c.rope_theta == 2e6);
  CHECK(c.tied_embeddings);
  CHECK_FALSE(parse(llama()).is_unrotated(0));
  json["no_rope_layer_interval"] = 2;
  CHECK(parse(json).unrotated == std::vector<bool>{false, true, false, true, false});
  json["no_rope_layers"] = {0, 1, 1, 1, 0};
  CHECK(parse(json).unrotated == std::vector<bool>{true, false, false, false, true});
  json["use_sliding_window"] = true;
  CHECK(parse(json).window_of(0) == 0);
  json["sliding_window"] = 100;
  CHECK(parse(json).window_of(0) == 100);
  CHECK(parse(json).window_of(1) == 0);
  refused(json, "no_rope_layers", {1, 1, 1, 0}, "for each of the 5 layers");
  refused(json, "no_rope_layers", {1, 1, 1, 1, 2}, "a list with 1 (rotated) or 0 (not rotated)");
  refused(json, "no_rope_layers", {1, 1, 1, 1, "0"}, "a list with 1");
  refused(json, "no_rope_layer_interval", 0, "whole number from 1");
}

TEST_CASE("a GPT-NeoX config is read") {
  const model_config c = parse(neox());
  CHECK(c.family == "gpt_neox");
  CHECK(c.layer_norm);
  CHECK_FALSE(c.gated_mlp);
  CHECK(c.parallel_residual);
  CHECK(c.rotary_dims == 4);
  CHECK(c.n_kv_heads == 2);
  CHECK(c.query_bias);
  CHECK(c.mlp_bias);
  nlohmann::json other = neox();
  other["use_parallel_residual"] = false;
  other["rotary_pct"] = 1.0;
  CHECK_FALSE(parse(other).parallel_residual);
  CHECK(parse(other).rotary_dims == 16);
  refused(neox(), "hidden_act", "gelu_new", "must be \"gelu\"");
  refused(neox(), "rotary_pct", 1.5, "from 0 to 1");
}

TEST_CASE("rotary parameters are read where newer folders keep them") {
  nlohmann::json json = llama();
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 7000.0}};
  CHECK(parse(json).rope_theta == 7000.0);
  json = neox();
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 9000.0}, {"partial_rotary_factor", 0.5}};
  CHECK(parse(json).rope_theta == 9000.0);
  CHECK(parse(json).rotary_dims == 8);
  json = llama();
  json["rope_scaling"] = nullptr;
  CHECK_NOTHROW(parse(json));
}

TEST_CASE("frequencies are slowed down as the config says") {
  const auto frequencies = [](const nlohmann::json& scaling) {
    nlohmann::json json = llama();
    json["rope_theta"] = 10000.0;
    json["rope_scaling"] = scaling;
    const model_config c = parse(json);
    std::vector<double> all;
    for (int pair = 0; pair < 4; ++pair)
      all.push_back(c.scaling.frequency(c.rope_theta, 8, pair));
    return all;
  };
  const auto are = [](const std::vector<double>& found, const std::vector<double>& expected) {
    for (std::size_t i = 0; i < 4; ++i)
      CHECK(found[i] == Approx(expected[i]).epsilon(1e-6));
  };
  are(frequencies({{"type", "linear"}, {"factor", 4.0}}), {0.25, 0.025, 0.0025, 0.00025});
  // transformers 5.23, modeling_rope_utils, in float32.
  are(frequencies({{"rope_type", "llama3"},
                   {"factor", 8.0},
                   {"low_freq_factor", 1.0},
                   {"high_freq_factor", 4.0},
                   {"original_max_position_embeddings", 128}}),
      {1, 0.0427511781, 0.00124999997, 0.000125000006});
  are(frequencies({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}}),
      {1, 0.0625, 0.00249999994, 0.000250000012});
  are(frequencies({{"rope_type", "yarn"},
                   {"factor", 4.0},
                   {"original_max_position_embeddings", 512},
                   {"truncate", false},
                   {"beta_fast", 16.0},
                   {"beta_slow", 2.0}}),
      {1, 0.0756644011, 0.00249999994, 0.000250000012});
  nlohmann::json json = llama();
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  CHECK(parse(json).scaling.amplitude == Approx(1.1386294));
  CHECK(parse(json).scaling.original_positions == 128);
  json["rope_scaling"]["attention_factor"] = 1.5;
  CHECK(parse(json).scaling.amplitude == 1.5);
  refused(llama(), "rope_scaling", {{"rope_type", "linear"}}, "lacks \"factor\"");
  refused(llama(), "rope_scaling", {{"rope_type", "llama3"}, {"factor", 8.0}}, "lacks \"original_max");
  refused(llama(), "rope_scaling", {{"rope_type", "longrope"}, {"factor", 8.0}}, "lacks \"long_factor\"");
  refused(llama(), "rope_scaling", {{"rope_type", "dynamic"}, {"factor", 8.0}}, "\"longrope\" or \"yarn\"");
  refused(llama(), "rope_scaling", {{"rope_type", "yarn"}, {"factor", 8.0}, {"mscale", 1.0}}, "without \"mscale\"");
}

TEST_CASE("a Bamba says which layers have attention, and the shape of the others") {
  nlohmann::json json = llama();
  json["model_type"] = "bamba";
  json["num_hidden_layers"] = 4;
  json["attn_layer_indices"] = {2};
  json["mamba_n_heads"] = 8;
  json["mamba_d_state"] = 20;
  const model_config config = parse(json);
  CHECK(config.n_attention_layers() == 1);
  CHECK(config.recurrent == std::vector<bool>{true, true, false, true});
  CHECK(config.recurrence.head_dim == 8);
  CHECK(config.recurrence.convolved() == 64 + 2 * 20);
  CHECK(config.rotary_dims == config.head_dim / 2);
  CHECK(config.recurrent_shape() == recurrent_shape{3, 64 * 32, 2 * 104 + 16, 3});
  CHECK(parse(llama()).recurrent_shape() == recurrent_shape{});
  json["time_step_limit"] = nlohmann::json::array({0.5, {{"__float__", "Infinity"}}});
  CHECK(parse(json).recurrence.least_step == 0.5F);
  CHECK(std::isinf(parse(json).recurrence.greatest_step));
  refused(json, "time_step_limit", {2.0, 1.0}, "the lower first");
  refused(json, "time_step_limit", 3, "two numbers");
  refused(json, "attn_layer_indices", nlohmann::json::array(),
          "a list of one or more layers, from 0 to 3, which have attention");
  refused(json, "attn_layer_indices", {4}, "from 0 to 3");
  refused(json, "attn_layer_indices", {"1"}, "from 0 to 3");
  refused(json, "mamba_n_heads", 7, "must divide");
  refused(json, "mamba_n_groups", 3, "must divide \"mamba_n_heads\", 8");
  refused(json, "mamba_d_head", 9, "\"mamba_n_heads\", 8");
  refused(json, "mamba_d_conv", 0, "whole number");
  json["attn_layer_indices"] = {0, 1, 2, 3};
  CHECK_FALSE(parse(json).is_hybrid());
}

TEST_CASE("a backend is made for as many positions as it is told, or all of the model's") {
  const model_config config = parse(llama());
  CHECK(config.positions(0) == 128);
  CHECK(config.positions(1) == 1);
  CHECK(config.positions(128) == 128);
  for (const int wanted : {-1, 129}) {
    CHECK_THROWS_WITH(config.positions(wanted),
                      "option max_positions is " + std::to_string(wanted) + ", but must lie between 0 and 128.");
  }
}

TEST_CASE("every field that does not fit is named with its value and what is allowed") {
  for (const char* key : {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                          "max_position_embeddings"}) {
    nlohmann::json without = llama();
    without.erase(key);
    CHECK_THROWS_WITH(parse(without), ContainsSubstring("config.json lacks \"" + std::string(key)));
    refused(llama(), key, 0, "whole number from 1");
    refused(llama(), key, -3, "is -3");
    refused(llama(), key, 1.5, "is 1.5");
    refused(llama(), key, "12", "is \"12\"");
    refused(llama(), key, 18446744073709551615U, "whole number");
    refused(llama(), key, 1e300, "whole number");
    refused(neox(), key, 0, "whole number from 1");
  }
  refused(llama(), "num_key_value_heads", 3, "multiple");
  refused(llama(), "num_key_value_heads", 8, "from 1 to 4");
  refused(llama(), "head_dim", 0, "whole number");
  refused(llama(), "head_dim", 7, "must be even");
  refused(llama(), "hidden_size", 33, "multiple of \"num_attention_heads\"");
  refused(llama(), "hidden_act", "gelu", "must be \"silu\"");
  refused(llama(), "hidden_act", 3, "a string");
  refused(llama(), "rms_norm_eps", -1.0, "from 0 to 1");
  refused(llama(), "rms_norm_eps", "small", "a number");
  refused(llama(), "rope_theta", 0.0, "from 1 to");
  refused(llama(), "tie_word_embeddings", 1, "true or false");
  refused(llama(), "rope_scaling", 2.0, "an object or null");
  refused(llama(), "model_type", "bert",
          "must be one of llama, mistral, qwen2, qwen3, gemma, gemma2, gemma3_text, gpt_neox");
  refused(llama(), "rope_scaling", {{"factor", 4.0}}, "has a \"factor\" but no \"rope_type\"");
  refused(llama(), "model_type", 4, "a string");
  refused(llama(), "layer_types", 3, "a list");
}

TEST_CASE("a model with Llama's shape that is no language model is refused") {
  nlohmann::json json = llama();
  for (const char* name : {"LlamaForCausalLM", "MyOwnForCausalLM"}) {
    json["architectures"] = {name};
    CHECK_NOTHROW(parse(json));
  }
  refused({{"model_type", "espalier_block"}, {"architectures", {"BlockDraft"}}}, "model_type", "espalier_block",
          "must be one of llama");
  json["architectures"] = nullptr;
  CHECK_NOTHROW(parse(json));
  for (const nlohmann::json& names :
       {nlohmann::json{"LlamaForSequenceClassification"}, nlohmann::json{"MistralModel"},
        nlohmann::json{"LlamaForCausalLMEagle3"}, nlohmann::json{3}, nlohmann::json("LlamaForCausalLM")}) {
    refused(llama(), "architectures", names, "must be that of a language model, such as [\"LlamaForCausalLM\"]");
  }
}

TEST_CASE("weights that are quantised in a form that is not read are refused by its name") {
  nlohmann::json json = llama();
  json["quantization_config"] = {{"quant_method", "espalier_int8_rows"}};
  CHECK_NOTHROW(parse(json));
  refused(llama(), "quantization_config", {{"quant_method", "gptq"}, {"bits", 4}},
          "has the \"quant_method\" \"gptq\", which is not read: weights of a folder must be F32");
  refused(llama(), "quantization_config", nlohmann::json::object(), "has the \"quant_method\" \"\"");
  refused(llama(), "quantization_config", 8, "has the \"quant_method\" \"8\"");
}

TEST_CASE("the language model of a model that sees pictures is read") {
  nlohmann::json mistral = llama();
  mistral["model_type"] = "mistral";
  mistral["sliding_window"] = nullptr;
  mistral.erase("num_key_value_heads");
  mistral["num_attention_heads"] = 16;
  nlohmann::json json = {{"model_type", "mistral3"},
                         {"architectures", {"Mistral3ForConditionalGeneration"}},
                         {"vision_config", {{"hidden_size", 1024}}},
                         {"text_config", mistral}};
  model_config c = parse(json);
  CHECK(c.family == "mistral");
  CHECK(c.tensor_prefix == "language_model.");
  CHECK(c.hidden_size == 32);
  CHECK(c.n_kv_heads == 8);
  CHECK(c.window_of(0) == 0);
  CHECK(parse(llama()).tensor_prefix.empty());
  // The config of google/gemma-3-4b-it says no more than this of its language model.
  json = {{"model_type", "gemma3"},
          {"text_config",
           {{"hidden_size", 2560},
            {"intermediate_size", 10240},
            {"model_type", "gemma3_text"},
            {"num_hidden_layers", 34},
            {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
            {"sliding_window", 1024}}}};
  c = parse(json);
  CHECK(c.family == "gemma3_text");
  CHECK(c.vocab_size == 262208);
  CHECK(c.hidden_size == 2560);
  CHECK(c.n_layers == 34);
  CHECK(c.n_heads == 8);
  CHECK(c.n_kv_heads == 4);
  CHECK(c.head_dim == 256);
  CHECK(c.max_positions == 131072);
  CHECK(c.window_of(0) == 1024);
  CHECK(c.window_of(5) == 0);
  CHECK(c.tied_embeddings);
  CHECK(c.tensor_prefix == "language_model.");
  refused(json, "text_config", nullptr, "lacks");
  refused(json, "text_config", "none", "an object");
  json["model_type"] = "mistral3";
  CHECK_THROWS_WITH(parse(json),
                    "config.json: \"text_config\": \"model_type\" is \"gemma3_text\", but must be "
                    "\"mistral\".");
  mistral["quantization_config"] = {{"quant_method", "fp8"}};
  json["text_config"] = mistral;
  CHECK_THROWS_WITH(parse(json),
                    ContainsSubstring("\"text_config\": \"quantization_config\"") && ContainsSubstring("\"fp8\""));
  mistral.erase("quantization_config");
  mistral["vocab_size"] = 0;
  json["text_config"] = mistral;
  CHECK_THROWS_WITH(parse(json), ContainsSubstring("\"text_config\": \"vocab_size\" is 0"));
}

TEST_CASE("a config that is no JSON object is refused") {
  for (const char* text : {"", "{", "[]", "nul", "{\"a\":1,}", "\xff"}) {
    CHECK_THROWS_WITH(model_config::parse(text, "config.json"), "config.json is not a JSON object.");
  }
  CHECK_THROWS_WITH(model_config::parse("{\"vocab_size\":1,\"vocab_size\":2}", "config.json"),
                    ContainsSubstring("\"vocab_size\" twice"));
  CHECK_THROWS_WITH(model_config::load("/no/such/folder"), "/no/such/folder/config.json cannot be opened.");
}
