// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/model_config.hpp"

#include <nlohmann/json.hpp>
#include <string>

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
  CHECK(c.family == model_config::family_type::llama);
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
  refused(qwen, "use_sliding_window", true, "not supported");
  refused(qwen, "layer_types", {"full_attention", "sliding_attention"}, "full_attention");
  qwen["layer_types"] = {"full_attention", "full_attention"};
  CHECK_NOTHROW(parse(qwen));
}

TEST_CASE("a GPT-NeoX config is read") {
  const model_config c = parse(neox());
  CHECK(c.family == model_config::family_type::gpt_neox);
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
  refused(llama(), "rope_scaling", {{"rope_type", "llama3"}}, "must be \"default\"");
  refused(llama(), "rope_scaling", {{"type", "linear"}}, "must be \"default\"");
  refused(llama(), "rope_scaling", 2.0, "an object or null");
  refused(llama(), "model_type", "bert", "must be one of llama, qwen2, qwen3, gpt_neox");
  refused(llama(), "model_type", 4, "a string");
  refused(llama(), "layer_types", 3, "a list");
}

TEST_CASE("a config that is no JSON object is refused") {
  for (const char* text : {"", "{", "[]", "nul", "{\"a\":1,}", "\xff"}) {
    CHECK_THROWS_WITH(model_config::parse(text, "config.json"), "config.json is not a JSON object.");
  }
  CHECK_THROWS_WITH(model_config::parse("{\"vocab_size\":1,\"vocab_size\":2}", "config.json"),
                    ContainsSubstring("\"vocab_size\" twice"));
  CHECK_THROWS_WITH(model_config::load("/no/such/folder"), "/no/such/folder/config.json cannot be opened.");
}
