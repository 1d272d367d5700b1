// SPDX-License-Identifier: BSL-1.0
#include "host_llama.hpp"

#include <filesystem>
#include <fstream>
#include <memory>

#include "espalier/model/llama/llama_backend.hpp"
#include "model/llama/llama_driver.hpp"
#include "model/llama/model_writer.hpp"

using namespace espalier;

struct host_llama::parts {
  llama_backend backend;
  recurrent_kv kv;
};

host_llama::host_llama(const std::string& folder, int n_sequences, int capacity) {
  auto backend = llama_backend::load(folder, {.threads = 1, .hidden_layers = {0, 1}});
  auto kv = llama_driver::cache_for(backend, capacity, n_sequences);
  parts_ = std::make_unique<parts>(parts{std::move(backend), std::move(kv)});
}

host_llama::~host_llama() = default;

const model_config& host_llama::config() const {
  return parts_->backend.config();
}

std::vector<host_llama::row_type> host_llama::forward(const forward_batch_view& batch) {
  for (const batch_sequence& s : batch.sequences)
    parts_->kv.append(s.sequence, s.row_end - s.row_begin);
  return llama_driver::rows_of(parts_->backend.forward(parts_->kv, batch));
}

void host_llama::commit_first(int sequence, int n) {
  llama_driver::commit_first(parts_->kv, sequence, n);
}

host_llama::row_type host_llama::hidden(int layer, int row) const {
  const auto state = parts_->backend.hidden(layer, row);
  return {state.begin(), state.end()};
}

model_config wide_llama(int head_dim) {
  model_config config = model_writer::wide_config();
  config.head_dim = config.rotary_dims = head_dim;
  return config;
}

void write_random_llama(const std::string& folder, const model_config& c, unsigned seed) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/model.safetensors", std::ios::binary) << model_writer::random_llama(c, seed).text();
  nlohmann::json config = {{"model_type", c.window > 0 ? "mistral" : "llama"},
                           {"vocab_size", c.vocab_size},
                           {"hidden_size", c.hidden_size},
                           {"num_hidden_layers", c.n_layers},
                           {"num_attention_heads", c.n_heads},
                           {"num_key_value_heads", c.n_kv_heads},
                           {"head_dim", c.head_dim},
                           {"intermediate_size", c.intermediate_size},
                           {"max_position_embeddings", c.max_positions},
                           {"rms_norm_eps", c.norm_epsilon},
                           {"tie_word_embeddings", true}};
  if (c.window > 0) config["sliding_window"] = c.window;
  std::ofstream(folder + "/config.json") << config.dump();
}

void write_random_gpt_oss(const std::string& folder, unsigned seed) {
  const nlohmann::json config = {
      {"model_type", "gpt_oss"},
      {"vocab_size", 72},
      {"hidden_size", 96},
      {"num_hidden_layers", 2},
      {"num_attention_heads", 4},
      {"num_key_value_heads", 2},
      {"head_dim", 32},
      {"intermediate_size", 160},
      {"num_local_experts", 5},
      {"num_experts_per_tok", 2},
      {"sliding_window", 4},
      {"attention_bias", true},
      {"max_position_embeddings", 512},
      {"rope_theta", 150000.0},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 32.0}, {"original_max_position_embeddings", 64}}},
      {"rms_norm_eps", 1e-5},
      {"tie_word_embeddings", false}};
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << config.dump();
  std::ofstream(folder + "/model.safetensors", std::ios::binary)
      << model_writer::random_gpt_oss(model_config::load(folder), seed).text();
}

void write_random_hybrid(const std::string& folder, recurrence_kind kind, float noise, int state) {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/config.json") << hybrid_tensors::config_text(40, 32, 3, 4, 2, 48, 4, state, 400, kind);
  std::ofstream(folder + "/model.safetensors", std::ios::binary)
      << model_writer::random_hybrid(model_config::load(folder), 1, noise).text();
}
