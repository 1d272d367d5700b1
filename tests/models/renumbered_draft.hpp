// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/files/whole_file.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

// Writes the bundled draft with other numbers for its tokens, and a tokenizer.json for them: token t becomes t + 7, the
// last seven the first. It drafts what the bundled draft does, in another vocabulary. Returns the folder.
//
// models: the folder of the bundled models; folder: where the files are written, which may exist
inline std::string write_renumbered_draft(const std::string& models, const std::string& folder) {
  using nlohmann::json;
  namespace detail = espalier::detail;
  constexpr int by = 7;
  std::filesystem::create_directories(folder);
  const auto put = [&](const char* name, const std::string& bytes) {
    std::ofstream(folder + "/" + name, std::ios::binary) << bytes;
  };
  const auto text = espalier::tokenizer::load(models + "/tokenizer.model");
  const auto renumbered = [&](int token) { return (token + by) % text.size(); };

  json vocabulary = json::object(), added = json::array();
  for (const auto& [token, mark] : text.marks())
    added.push_back({{"id", renumbered(token)}, {"content", mark}, {"special", true}, {"normalized", false}});
  for (int token = 0; token < text.size(); ++token) {
    std::string word = detail::replaced(text.piece(token), " ", detail::space_mark);
    if (text.is_byte(token)) {
      std::array<char, 8> name{};
      std::snprintf(name.data(), name.size(), "<0x%02X>", static_cast<unsigned char>(text.piece(token)[0]));
      word = name.data();
    }
    if (word == detail::replacement_character) word = "<unk>";
    if (!word.empty()) vocabulary[word] = renumbered(token);
  }
  const json steps = {{"type", "Metaspace"}, {"replacement", detail::space_mark}, {"prepend_scheme", "never"}};
  put("tokenizer.json", json{{"added_tokens", added},
                             {"pre_tokenizer", steps},
                             {"decoder", steps},
                             {"model",
                              {{"type", "BPE"},
                               {"vocab", vocabulary},
                               {"merges", json::array()},
                               {"unk_token", "<unk>"},
                               {"byte_fallback", true}}}}
                            .dump());
  put("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true})");
  json config = json::parse(detail::whole_file(models + "/draft/config.json"));
  for (const char* key : {"bos_token_id", "eos_token_id"})
    config[key] = renumbered(config[key].get<int>());
  put("config.json", config.dump());

  // A file begins with the length of its header, eight bytes, and the header.
  std::string weights = detail::whole_file(models + "/draft/model.safetensors");
  std::uint64_t length = 0;
  std::memcpy(&length, weights.data(), sizeof(length));
  const json header = json::parse(weights.substr(sizeof(length), length));
  for (const char* name : {"model.embed_tokens.weight", "model.embed_tokens.weight_scale"}) {
    const auto range = header.at(name).at("data_offsets").get<std::array<std::ptrdiff_t, 2>>();
    const auto first = weights.begin() + static_cast<std::ptrdiff_t>(sizeof(length) + length);
    const std::ptrdiff_t row = (range[1] - range[0]) / text.size();
    std::rotate(first + range[0], first + range[1] - by * row, first + range[1]);
  }
  put("model.safetensors", weights);
  return folder;
}
