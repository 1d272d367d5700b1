// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/tokenizer/tokenizer/tokenizer_json.hpp"
#include "espalier/model/tokenizer/tokenizer/tokenizer_parts.hpp"

namespace espalier::detail {

inline std::string read_whole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) raise<model_error>(path, " cannot be read.");
  return bytes;
}

// Reads the files next to a tokenizer.json: the tokens that begin and end a text, and the chat template.
class tokenizer_settings {
 public:
  explicit tokenizer_settings(tokenizer_parts& parts) : parts_(parts) {}

  // Reads tokenizer_config.json.
  void read_tokenizer_config(std::string_view text, const std::string& where) {
    const nlohmann::json file = parse_json_object(text, where);
    const json_reader config(file, where);
    parts_.begin_mark = mark_of(config, "bos_token");
    parts_.end_mark = mark_of(config, "eos_token");
    if (!parts_.end_mark.empty()) parts_.add_end(id_of(config, "eos_token", parts_.end_mark));
    if (config.has("add_bos_token")) {
      const bool adds = config.flag_or("add_bos_token", false) && !parts_.begin_mark.empty();
      parts_.begin = adds ? id_of(config, "bos_token", parts_.begin_mark) : -1;
    }
    const nlohmann::json* const chat = config.find("chat_template");
    if (chat && chat->is_string()) parts_.chat_template = chat->get<std::string>();
    if (chat && chat->is_array()) read_named_templates(config, *chat);
  }

  // Reads generation_config.json or config.json: one ending token or a list.
  void read_ends(std::string_view text, const std::string& where) {
    const nlohmann::json file = parse_json_object(text, where);
    const json_reader config(file, where);
    const nlohmann::json* const ends = config.find("eos_token_id");
    if (!ends) return;
    const auto most = static_cast<int>(parts_.pieces.size()) - 1;
    for (const nlohmann::json& end : ends->is_array() ? *ends : nlohmann::json::array({*ends})) {
      if (!end.is_number_integer() || end < 0 || end > most)
        config.refuse("eos_token_id", *ends, "a token from 0 to ", most, ", or a list of them");
      parts_.add_end(end.get<token_id>());
    }
  }

 private:
  // The text of a token, which is given as text or as an object that contains it.
  static std::string mark_of(const json_reader& config, const char* key) {
    const nlohmann::json* const mark = config.find(key);
    if (mark && mark->is_object()) return json_reader(*mark, config.where()).text_or("content", "");
    return config.text_or(key, "");
  }

  token_id id_of(const json_reader& config, const char* key, const std::string& mark) const {
    const added_token* const token = parts_.added.find(mark);
    if (!token)
      raise<model_error>(config.where(), ": \"", key, "\" is \"", mark, "\", but ", parts_.where,
                         " has no such added token.");
    return token->id;
  }

  void read_named_templates(const json_reader& config, const nlohmann::json& list) {
    for (const nlohmann::json& entry : list) {
      if (!entry.is_object())
        config.refuse("chat_template", list, "a string, or a list of objects with name and template");
      const json_reader named(entry, config.where() + ": \"chat_template\"");
      if (named.text_or("name", "") == "default") parts_.chat_template = named.text_or("template", "");
    }
  }

  tokenizer_parts& parts_;
};

// The tokenizer of a folder of Hugging Face's form.
inline tokenizer_parts read_tokenizer_folder(const std::string& folder) {
  tokenizer_parts parts = tokenizer_json(read_whole(folder + "/tokenizer.json"), folder + "/tokenizer.json").parts();
  tokenizer_settings settings(parts);
  const auto each = [&](const char* name, auto&& read) {
    const std::string path = folder + "/" + name;
    if (std::filesystem::is_regular_file(path)) read(read_whole(path), path);
  };
  each("tokenizer_config.json",
       [&](const auto& text, const auto& path) { settings.read_tokenizer_config(text, path); });
  each("generation_config.json", [&](const auto& text, const auto& path) { settings.read_ends(text, path); });
  each("config.json", [&](const auto& text, const auto& path) { settings.read_ends(text, path); });
  each("chat_template.jinja", [&](const auto& text, const auto&) { parts.chat_template = text; });
  return parts;
}

}  // namespace espalier::detail
