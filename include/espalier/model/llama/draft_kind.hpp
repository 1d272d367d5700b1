// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/draft_head_model.cpp
#pragma once

#include <filesystem>
#include <string>

#include "espalier/core/error.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/files/safetensors_file.hpp"
#include "espalier/model/files/safetensors_shards.hpp"
#include "espalier/model/files/whole_file.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

//! The kinds of models that draft, by what their rows depend on.
enum class draft_kind {
  language_model,  //!< the path alone; see llama_backend
  eagle3,          //!< the target's hidden states and the path; see draft_head_model
  mtp,             //!< the target's hidden states and the path; see draft_head_model
  peagle,          //!< the target's hidden states, all depths in one pass; see parallel_head_model
  block,           //!< the target's hidden states, and the path by corrections at most; see block_draft_model
};

//! Whether models of a kind draft all depths in one pass.
constexpr bool drafts_blocks(draft_kind kind) {
  return kind == draft_kind::block || kind == draft_kind::peagle;
}

namespace detail {

// Returns the kind of model that a config.json describes.
inline draft_kind draft_kind_in(const nlohmann::json& config) {
  const auto text = [&](const char* key) {
    const auto found = config.find(key);
    return found != config.end() && found->is_string() ? found->get<std::string>() : std::string();
  };
  const auto names = config.find("architectures");
  const auto is_named = [&](const char* part) {
    return names != config.end() && names->dump().find(part) != std::string::npos;
  };
  const std::string speculator = text("speculators_model_type");
  if (speculator == "peagle") return draft_kind::peagle;
  if (text("model_type") == "espalier_block" || speculator == "dflash" || speculator == "dflash2" ||
      speculator == "dspark" || speculator == "xpress")
    return draft_kind::block;
  if (!config.contains("speculators_model_type") && (config.contains("dflash_config") || is_named("DFlash")))
    return draft_kind::block;
  if (speculator == "mtp") return draft_kind::mtp;
  // The reader of EAGLE-3 heads refuses other values of "speculators_model_type".
  if (config.contains("speculators_model_type") || config.contains("draft_vocab_size")) return draft_kind::eagle3;
  return is_named("Eagle3") ? draft_kind::eagle3 : draft_kind::language_model;
}

// Returns the config of the transformer in a config.json of speculators. Such a file leaves out numbers that are the
// defaults of the transformer's class in transformers.
//
// Errors: model_error if there is no such object
inline nlohmann::json speculators_layer(const json_reader& json) {
  const nlohmann::json* part = json.find("transformer_layer_config");
  if (!part) raise<model_error>(json.where(), " lacks \"transformer_layer_config\".");
  if (!part->is_object()) json.refuse("transformer_layer_config", *part, "an object");
  nlohmann::json layer{{"vocab_size", 151936},
                       {"hidden_size", 4096},
                       {"intermediate_size", 22016},
                       {"num_hidden_layers", 32},
                       {"num_attention_heads", 32},
                       {"num_key_value_heads", 32},
                       {"max_position_embeddings", 32768}};
  if (json_reader(*part, json.where()).text_or("model_type", "") == "llama") {
    layer.update({{"vocab_size", 32000}, {"intermediate_size", 11008}, {"max_position_embeddings", 2048}});
    layer.erase("num_key_value_heads");
  }
  layer.update(*part);
  layer.erase("architectures");
  return layer;
}

}  // namespace detail

//! Returns the kind of the model at `path`: for a folder by its config.json, for a GGUF file by its
//! "general.architecture", for anything else language_model. It does not check that the model can be read.
//!
//! Errors      model_error for a config.json that is missing or no JSON object, and for a damaged GGUF file
inline draft_kind draft_kind_of(const std::string& path) {
  if (!std::filesystem::is_directory(path)) {
    if (!gguf_file::begins_as_one(path)) return draft_kind::language_model;
    const std::string architecture = gguf_file(path).metadata().text_or("general.architecture", "");
    return architecture == "eagle3"   ? draft_kind::eagle3
           : architecture == "dflash" ? draft_kind::block
                                      : draft_kind::language_model;
  }
  const std::string where = path + "/config.json";
  return detail::draft_kind_in(detail::parse_json_object(detail::whole_file(where), where));
}

//! Returns whether the files in a model's folder hold a head that drafts for it: a tensor mtp.fc.weight.
//!
//! Errors      model_error for files that cannot be read
inline bool has_head_beside(const std::string& path) {
  const char* const name = "mtp.fc.weight";
  if (std::filesystem::exists(path + "/model.safetensors.index.json"))
    return safetensors_shards(path).find(name) != nullptr;
  const std::string weights = path + "/model.safetensors";
  return std::filesystem::exists(weights) && safetensors_file(weights).find(name) != nullptr;
}

}  // namespace espalier
