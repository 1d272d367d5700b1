// SPDX-License-Identifier: BSL-1.0
#include "espalier/model/llama/model_files.hpp"

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "model/files/gguf_writer.hpp"
#include "model/llama/model_writer.hpp"

namespace {

using namespace espalier;
using Catch::Matchers::ContainsSubstring;
namespace fs = std::filesystem;

// What a GGUF file of a Llama must say, and the tensors that its shape is read from. The number `listed` is given for
// each layer.
gguf_writer::file_text llama(const std::string& architecture = "llama", const std::string& listed = "",
                             const std::vector<std::int32_t>& numbers = {}) {
  gguf_writer::file_text file;
  file.add("general.architecture", architecture);
  const auto add = [&](const std::string& key, int value) {
    if (key != listed) return file.add(architecture + "." + key, value);
    std::string list = gguf_writer::bytes_of(std::uint32_t{5}) + gguf_writer::bytes_of(std::uint64_t{numbers.size()});
    for (const std::int32_t number : numbers)
      list += gguf_writer::bytes_of(number);
    file.add_raw(architecture + "." + key, 9, list);
  };
  add("context_length", 128);
  add("embedding_length", 32);
  add("block_count", 2);
  add("feed_forward_length", 48);
  add("attention.head_count", 4);
  add("attention.head_count_kv", 2);
  file.add(architecture + ".attention.layer_norm_rms_epsilon", 1e-5F);
  file.add_tensor("token_embd.weight", 0, {40, 32}, std::string(40 * 32 * 4, '\0'));
  return file;
}

model_config config_of(const gguf_writer::file_text& text) {
  gguf_file file = gguf_writer::open(text.text());
  return read_gguf_config(file);
}

template <class ValueT>
gguf_writer::file_text with(const std::string& key, const ValueT& value, const std::string& architecture = "llama") {
  gguf_writer::file_text file = llama(architecture);
  file.add(architecture + "." + key, value);
  return file;
}

void refused(const gguf_writer::file_text& text, const std::string& words) {
  INFO(words);
  CHECK_THROWS_WITH(config_of(text), ContainsSubstring("model.gguf") && ContainsSubstring(words));
  CHECK_THROWS_AS(config_of(text), model_error);
}

// A folder that goes when it is done with.
struct folder {
  explicit folder(const std::string& name)
      : path((fs::temp_directory_path() / ("espalier_model_files_" + name)).string()) {
    fs::remove_all(path);
    fs::create_directories(path);
  }
  ~folder() { fs::remove_all(path); }
  void write(const std::string& name, const std::string& text) const {
    std::ofstream(path + "/" + name, std::ios::binary) << text;
  }
  std::string path;
};

constexpr const char* small_config = R"({"model_type": "llama", "vocab_size": 40, "hidden_size": 8,
  "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 64})";

}  // namespace

TEST_CASE("the shape of a model is read from a GGUF file") {
  const model_config c = config_of(llama());
  CHECK(c.family == "llama");
  CHECK(c.vocab_size == 40);
  CHECK(c.hidden_size == 32);
  CHECK(c.n_layers == 2);
  CHECK(c.n_kv_heads == 2);
  CHECK(c.head_dim == 8);
  CHECK(c.rotary_dims == 8);
  CHECK(c.intermediate_size == 48);
  CHECK(c.max_positions == 128);
  CHECK(c.norm_epsilon == 1e-5F);
  CHECK(c.rope_theta == 10000.0);
  CHECK(c.tied_embeddings);
  CHECK(c.paired_rotary);
  CHECK_FALSE(c.query_bias);
  CHECK_FALSE(config_of(llama("qwen3")).paired_rotary);
  gguf_writer::file_text file = with("attention.key_length", 16, "qwen2");
  for (const char* name : {"output.weight", "blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias",
                           "blk.0.attn_q_norm.weight"}) {
    file.add_tensor(name, {1}, {0});
  }
  const model_config other = config_of(file);
  CHECK(other.head_dim == 16);
  CHECK_FALSE(other.tied_embeddings);
  CHECK(other.query_bias);
  CHECK(other.attention_out_bias);
  CHECK(other.mlp_bias);
  CHECK(other.query_key_norm);
}

TEST_CASE("windows, caps and scales are read from a GGUF file") {
  CHECK(config_of(with("attention.sliding_window", 16)).window_of(1) == 16);
  gguf_writer::file_text file = llama("gemma2");
  file.add("gemma2.attn_logit_softcapping", 20.0F);
  file.add("gemma2.attention.sliding_window", 100);
  const model_config gemma2 = config_of(file);
  CHECK(gemma2.attention_cap == 20.0F);
  CHECK(gemma2.logit_cap == 30.0F);
  CHECK(gemma2.window_of(0) == 100);
  CHECK(gemma2.window_of(1) == 0);
  CHECK(gemma2.embedding_scale == std::sqrt(32.0F));
  CHECK(gemma2.score_scale() == 1.0F / std::sqrt(8.0F));
  CHECK_FALSE(gemma2.norms_less_one);
  file = llama("gemma3");
  file.add("gemma3.attention.sliding_window", 100);
  const std::string flags = gguf_writer::bytes_of(std::uint32_t{7}) + gguf_writer::bytes_of(std::uint64_t{2});
  file.add_raw("gemma3.attention.sliding_window_pattern", 9, flags + std::string("\0\1", 2));
  const model_config gemma3 = config_of(file);
  CHECK(gemma3.window_of(0) == 0);
  CHECK(gemma3.window_of(1) == 100);
  CHECK(gemma3.local_rope_theta == 10000.0);
  CHECK(gemma3.attention_cap == 0.0F);
}

TEST_CASE("a number that a GGUF file gives for each layer is read where all are equal") {
  CHECK(config_of(llama("llama", "attention.head_count_kv", {1, 1})).n_kv_heads == 1);
  CHECK(config_of(llama("llama", "attention.head_count", {8, 8})).n_heads == 8);
  CHECK(config_of(llama("llama", "feed_forward_length", {64, 64})).intermediate_size == 64);
  refused(llama("llama", "feed_forward_length", {64, 48}), "llama.feed_forward_length\" is a list of 2");
  refused(llama("llama", "attention.head_count_kv", {2}), "for each of the 2 layers");
  refused(llama("llama", "attention.head_count_kv", {8, 8}), "a whole number from 1 to 4");
  refused(llama("llama", "attention.head_count", {}), "a list of 0");
  refused(llama("llama", "context_length", {64, 64}), "llama.context_length");
}

TEST_CASE("how a GGUF file slows the rotary embedding down is read") {
  gguf_writer::file_text file = llama();
  file.add("llama.rope.scaling.type", "linear");
  file.add("llama.rope.scaling.factor", 4.0F);
  CHECK(config_of(file).scaling.frequency(10000.0, 8, 1) == Approx(0.025));
  CHECK(config_of(with("rope.scale_linear", 4.0F)).scaling.frequency(10000.0, 8, 1) == Approx(0.025));
  CHECK(config_of(with("rope.scaling.factor", 4.0F)).scaling.frequency(10000.0, 8, 1) == Approx(0.025));
  CHECK(config_of(with("rope.scaling.factor", 1.0F)).scaling.kind == rope_scaling::kind_type::none);
  file = with("rope.scale_linear", 8.0F);
  file.add("llama.rope.scaling.factor", 4.0F);
  CHECK(config_of(file).scaling.frequency(10000.0, 8, 1) == Approx(0.025));
  file = with("rope.scale_linear", 8.0F);
  file.add("llama.rope.scaling.type", "none");
  CHECK(config_of(file).scaling.frequency(10000.0, 8, 1) == Approx(0.1));
  refused(with("rope.scale_linear", 0.5F), "\"llama.rope.scale_linear\" is 0.5, but must be a number from 1");
  file = with("rope.scale_linear", 4.0F);
  file.add_tensor("rope_freqs.weight", {4}, {1, 2, 4, 8});
  refused(file, "\"rope_freqs.weight\" stands beside another scaling");
  file = llama();
  file.add_tensor("rope_freqs.weight", {4}, {1, 2, 4, 8});
  CHECK(config_of(file).scaling.frequency(10000.0, 8, 3) == Approx(0.001 / 8));
  file = llama();
  file.add_tensor("rope_freqs.weight", {4}, {1, 2, 4, 0});
  refused(file, "\"rope_freqs.weight\" has 0, but must have divisors above 0");
  file = llama();
  file.add_tensor("rope_freqs.weight", {3}, {1, 2, 4});
  refused(file, "\"rope_freqs.weight\" has shape [3], but the metadata makes it [4]");
  refused(with("rope.scaling.type", "dynamic"), "is \"dynamic\", but must be none, linear, yarn or longrope");
  refused(with("rope.scaling.type", "longrope"), "lacks \"llama.rope.scaling.original_context_length\"");
  file = with("rope.scaling.original_context_length", 64);
  file.add("llama.rope.scaling.attn_factor", 1.5F);
  file.add_tensor("rope_factors_long.weight", {4}, {1, 2, 4, 8});
  refused(file, "lacks tensor \"rope_factors_short.weight\"");
  file.add_tensor("rope_factors_short.weight", {4}, {1, 1, 1, 2});
  const rope_scaling long_or_short = config_of(file).scaling;
  CHECK(long_or_short.frequency(10000.0, 8, 3, 65) == Approx(0.001 / 8));
  CHECK(long_or_short.frequency(10000.0, 8, 3, 64) == Approx(0.001 / 2));
  CHECK(long_or_short.amplitude == 1.5);
  file.add_tensor("rope_freqs.weight", {4}, {1, 2, 4, 8});
  refused(file, "\"rope_factors_long.weight\" stands beside another scaling");
  refused(with("rope.dimension_count", 4), "must be 8, all of a head");
  refused(with("rope.dimension_count", 3, "qwen2"), "must be even");
}

TEST_CASE("a GGUF file says which layers have a mixture of experts, and its shape") {
  const auto mixture = [](const std::string& architecture) {
    gguf_writer::file_text file = with("expert_count", 4, architecture);
    file.add(architecture + ".expert_used_count", 2);
    file.add_tensor("blk.1.ffn_gate_inp.weight", 0, {4, 32}, std::string(4 * 32 * 4, '\0'));
    return file;
  };
  const auto changed = [&](const std::string& key, const auto& value) {
    gguf_writer::file_text file = mixture("llama");
    file.add("llama." + key, value);
    return file;
  };
  model_config c = config_of(mixture("llama"));
  CHECK(c.mixture.experts == 4);
  CHECK(c.mixture.used == 2);
  CHECK(c.mixture.size == 48);
  CHECK(c.mixture.sums_to_one);
  CHECK(c.mixtures == std::vector<bool>{false, true});
  CHECK(config_of(changed("expert_feed_forward_length", 20)).mixture.size == 20);
  CHECK_FALSE(config_of(changed("expert_weights_norm", false)).mixture.sums_to_one);
  CHECK_NOTHROW(config_of(changed("expert_gating_func", 1)));
  CHECK_NOTHROW(config_of(changed("expert_weights_scale", 0.0F)));
  refused(changed("expert_gating_func", 2), "\"llama.expert_gating_func\" is 2, but must be 1, or missing");
  refused(changed("expert_weights_scale", 2.5F), "\"llama.expert_weights_scale\" is 2.5, but must be 1, or missing");
  refused(changed("expert_group_count", 4), "\"llama.expert_group_count\" is 4, but must be 1, or missing");
  refused(changed("expert_shared_count", 1), "\"llama.expert_shared_count\" is 1, but must be 0, or missing");
  refused(with("expert_count", 4), "lacks \"llama.expert_used_count\"");
  gguf_writer::file_text file = with("expert_count", 4);
  file.add("llama.expert_used_count", 5);
  refused(file, "\"llama.expert_used_count\" is 5, but must be a whole number from 1 to 4");
  file = with("expert_count", 4);
  file.add("llama.expert_used_count", 2);
  refused(file, "\"llama.expert_count\" is 4, but no layer has a router, such as tensor \"blk.0.ffn_gate_inp.weigh");
  CHECK_FALSE(c.attention_sinks);
  file = mixture("gpt-oss");
  file.add("gpt-oss.expert_feed_forward_length", 20);
  file.add("gpt-oss.attention.sliding_window", 16);
  c = config_of(file);
  CHECK(c.attention_sinks);
  CHECK(c.mixture.biased);
  CHECK(c.mixture.size == 20);
  CHECK(c.mixture.limit == 7.0F);
  CHECK(c.mixture.gain == 1.702F);
  CHECK(c.window_of(0) == 16);
  CHECK(c.window_of(1) == 0);
  refused(llama("gpt-oss"), "lacks \"gpt-oss.expert_count\"");
  refused(llama("qwen3moe"), "lacks \"qwen3moe.expert_count\"");
  refused(mixture("qwen3moe"), "lacks \"qwen3moe.expert_feed_forward_length\"");
}

TEST_CASE("what sets the younger families apart is read from a GGUF file") {
  gguf_writer::file_text file = llama("phi3");
  file.add("phi3.rope.dimension_count", 6);
  file.add_tensor("blk.0.attn_qkv.weight", {1}, {0});
  CHECK(config_of(file).joined_projections);
  CHECK(config_of(file).joined_gate);
  CHECK(config_of(file).rotary_dims == 6);
  CHECK_FALSE(config_of(llama("phi3")).joined_projections);
  const model_config olmo = config_of(llama("olmo2"));
  CHECK(olmo.output_norms);
  CHECK_FALSE(olmo.input_norms);
  CHECK(olmo.key_norm_size() == 16);
  CHECK(olmo.local_rope_theta == 0.0);
  file = with("attention.sliding_window", 64, "olmo2");
  file.add("olmo2.rope.freq_base", 20000.0F);
  CHECK(config_of(file).window_of(1) == 64);
  CHECK(config_of(file).local_rope_theta == 20000.0);
  file = with("logit_scale", 8.0F, "granite");
  CHECK(config_of(file).logit_divisor == 8.0F);
  CHECK(config_of(file).score_scale() == 1.0F / std::sqrt(8.0F));
  CHECK(config_of(file).residual_scale == 1.0F);
  CHECK(config_of(file).paired_rotary);
  file.add("granite.attention.scale", 0.5F);
  file.add("granite.residual_scale", 0.25F);
  file.add("granite.embedding_scale", 12.0F);
  CHECK(config_of(file).score_scale() == 0.5F);
  CHECK(config_of(file).residual_scale == 0.25F);
  CHECK(config_of(file).embedding_scale == 12.0F);
  file.add("granite.rope.scaling.finetuned", false);
  refused(file, "must be true: layers without rotation are not supported");
  refused(llama("granite"), "lacks \"granite.logit_scale\"");
  CHECK(config_of(llama("smollm3")).unrotated == std::vector<bool>{false, false});
  file = with("rope.dimension_count", 4, "glm4");
  const model_config glm = config_of(file);
  CHECK(glm.output_norms);
  CHECK(glm.input_norms);
  CHECK(glm.joined_gate);
  CHECK(glm.paired_rotary);
  CHECK(glm.rotary_dims == 4);
  file.add("glm4.rope.dimension_sections", 2);
  refused(file, "\"glm4.rope.dimension_sections\" is of a model that sees pictures");
  refused(with("nextn_predict_layers", 1, "glm4"), "must be 0: layers that only draft are not supported");
}

TEST_CASE("a GGUF file says which layers are delta networks, and their shape") {
  const auto qwen = [](const std::string& architecture) {
    gguf_writer::file_text file = llama(architecture);
    const auto add = [&](const char* key, int value) { file.add(architecture + ".ssm." + key, value); };
    add("time_step_rank", 4), add("group_count", 2), add("state_size", 10), add("conv_kernel", 3);
    add("inner_size", 24);
    file.add(architecture + ".full_attention_interval", 2);
    return file;
  };
  const auto changed = [&](const std::string& key, const auto& value) {
    gguf_writer::file_text file = qwen("qwen35");
    file.add("qwen35." + key, value);
    return file;
  };
  model_config c = config_of(qwen("qwen35"));
  CHECK(c.layout == model_config::layout_type::gguf_qwen3_5);
  CHECK(c.recurrent == std::vector<bool>{true, false});
  CHECK(c.recurrence.is_delta());
  CHECK(c.recurrence.head_dim == 6);
  CHECK(c.recurrence.convolved() == 24 + 2 * 2 * 10);
  CHECK(c.recurrence.taps == 3);
  CHECK(c.recurrence.group_of(1) == 1);
  CHECK(c.attention_gate);
  CHECK(c.query_key_norm);
  CHECK_FALSE(c.norms_less_one);
  refused(llama("qwen35"), "lacks \"qwen35.ssm.time_step_rank\"");
  refused(changed("nextn_predict_layers", 2),
          "\"qwen35.nextn_predict_layers\" is 2, but must be a whole number from 0");
  refused(changed("nextn_predict_layers", 1), "gives no layer attention");
  const auto listed = [&](const std::string& flags) {
    return [&, flags](gguf_writer::file_text file) {
      file.add_raw(
          "qwen35.attention.recurrent_layers", 9,
          gguf_writer::bytes_of(std::uint32_t{7}) + gguf_writer::bytes_of(std::uint64_t{flags.size()}) + flags);
      return file;
    }(qwen("qwen35"));
  };
  CHECK(config_of(listed(std::string{'\0', '\1'})).recurrent == std::vector<bool>{false, true});
  CHECK_FALSE(config_of(listed(std::string(2, '\0'))).is_hybrid());
  refused(listed("\1"), "must be a list with true or false for each layer");
  gguf_writer::file_text drafting = listed(std::string{'\0', '\1'});
  drafting.add("qwen35.nextn_predict_layers", 1);
  c = config_of(drafting);
  CHECK(c.n_layers == 1);
  CHECK(c.draft_layers == 1);
  CHECK_FALSE(c.is_hybrid());
  gguf_writer::file_text uneven = llama("qwen35");
  uneven.add("qwen35.ssm.time_step_rank", 4);
  uneven.add("qwen35.ssm.group_count", 3);
  uneven.add("qwen35.ssm.state_size", 8);
  uneven.add("qwen35.ssm.conv_kernel", 4);
  uneven.add("qwen35.ssm.inner_size", 24);
  refused(uneven, "\"qwen35.ssm.group_count\" is 3, but must be a divisor of ssm.time_step_rank, 4");
  refused(qwen("qwen3next"), "lacks \"qwen3next.expert_count\"");
}

TEST_CASE("a GGUF file that no family here has written is refused, with what is supported") {
  refused(gguf_writer::file_text(), "lacks \"general.architecture\"");
  refused(llama("mamba"),
          "\"general.architecture\" is \"mamba\", but must be one of llama (Mistral, Mixtral and SmolLM2");
  refused(with("expert_count", 8, "qwen2"), "\"qwen2.expert_count\" is 8, but must be 0, or missing, in this archit");
  refused(with("pooling_type", 3, "qwen3"),
          "\"qwen3.pooling_type\" is 3, but must be 0: others are no language models");
  CHECK_NOTHROW(config_of(with("pooling_type", 0)));
  refused(with("attention.causal", false), "\"llama.attention.causal\" is false, but must be true: others are no lang");
  refused(with("attention.value_length", 4), "\"llama.attention.value_length\" is 4, but must be 8");
  gguf_writer::file_text file = llama();
  file.add_tensor("output.bias", {1}, {0});
  refused(file, "\"output.bias\" is not supported");
  file = llama("gptneox");
  refused(file, "lacks \"gptneox.attention.layer_norm_epsilon\"");
  gguf_writer::file_text other;
  other.add("general.architecture", "llama");
  refused(other, "lacks tensor \"token_embd.weight\"");
  other.add_tensor("token_embd.weight", 0, {40}, std::string(160, '\0'));
  refused(other, "\"token_embd.weight\" must have two extents");
}

TEST_CASE("a tensor of a GGUF file that cannot be decoded is named with what can be") {
  gguf_writer::file_text text = llama();
  text.add_tensor("blk.0.attn_norm.weight", 16, {256}, std::string(66, '\0'));
  gguf_file file = gguf_writer::open(text.text());
  CHECK_THROWS_WITH(detail::tensor_reader(file).vector("blk.0.attn_norm.weight", 256, [](const float*) {}),
                    ContainsSubstring("model.gguf: tensor \"blk.0.attn_norm.weight\" has dtype IQ2_XXS, but must be "
                                      "F32, F16, BF16, Q4_0"));
}

TEST_CASE("what is neither a folder with a model nor a GGUF file is refused by name") {
  const folder at("neither");
  CHECK_THROWS_WITH(model_files::open(at.path + "/nothing"),
                    ContainsSubstring("/nothing/config.json cannot be opened"));
  CHECK_THROWS_WITH(model_files::open(at.path), ContainsSubstring("/config.json cannot be opened"));
  at.write("text", "no model at all, but some text that is long enough");
  CHECK_THROWS_WITH(model_files::open(at.path + "/text"), ContainsSubstring("/text is no GGUF file"));
  at.write("config.json", small_config);
  CHECK_THROWS_WITH(model_files::open(at.path), ContainsSubstring("/model.safetensors cannot be opened"));
}

TEST_CASE("a folder whose weights are in another format is refused, with the format that is read") {
  for (const char* name : {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth"}) {
    const folder at("other_weights");
    at.write("config.json", small_config);
    at.write(name, "weights");
    CHECK_THROWS_AS(model_files::open(at.path), model_error);
    CHECK_THROWS_WITH(model_files::open(at.path),
                      ContainsSubstring(at.path + " has " + name + " but no model.safetensors, and no other weights"));
    at.write("model.safetensors", model_writer::file_text().text());
    CHECK_NOTHROW(model_files::open(at.path));
  }
}

TEST_CASE("an index that lies about its files is refused by name") {
  const folder at("shards");
  at.write("config.json", small_config);
  model_writer::file_text shard;
  shard.add("a", {2}, {1, 2});
  at.write("one.safetensors", shard.text());
  const auto with_index = [&](const std::string& index) {
    at.write("model.safetensors.index.json", index);
    return model_files::open(at.path);
  };
  const model_files files = with_index(R"({"weight_map": {"a": "one.safetensors"}})");
  REQUIRE(files.tensors->find("a"));
  CHECK(files.tensors->where_is(*files.tensors->find("a")) == at.path + "/one.safetensors");
  CHECK_FALSE(files.tensors->find("b"));
  shard.add("b", {1}, {1});
  at.write("one.safetensors", shard.text());
  const model_files more = with_index(R"({"weight_map": {"a": "one.safetensors"}})");
  CHECK(more.tensors->names() == std::vector<std::string>{"a", "b"});
  detail::tensor_reader reader(*more.tensors, true);
  reader.vector("a", 2, [](const float*) {});
  CHECK_THROWS_WITH(reader.require_all_asked_for(),
                    ContainsSubstring("index.json: tensor \"b\" has no place in what the config makes"));
  shard = {};
  shard.add("a", {2}, {1, 2});
  at.write("one.safetensors", shard.text());
  CHECK_THROWS_WITH(with_index("{}"), ContainsSubstring("index.json has no object \"weight_map\""));
  CHECK_THROWS_WITH(with_index(R"({"weight_map": {"a": 1}})"), ContainsSubstring("\"a\" does not name a file"));
  CHECK_THROWS_WITH(with_index(R"({"weight_map": {"a": "../x"}})"), ContainsSubstring("\"a\" does not name a file"));
  CHECK_THROWS_WITH(with_index(R"({"weight_map": {"a": "two"}})"), ContainsSubstring("/two cannot be opened"));
  CHECK_THROWS_WITH(with_index(R"({"weight_map": {"b": "one.safetensors"}})"),
                    ContainsSubstring("one.safetensors lacks tensor \"b\", which the index says it holds"));
}
