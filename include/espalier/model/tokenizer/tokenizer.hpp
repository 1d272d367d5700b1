// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/util/utf8.hpp"
#include "espalier/model/files/gguf_file.hpp"
#include "espalier/model/files/gguf_metadata.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/files/whole_file.hpp"
#include "espalier/model/tokenizer/tokenizer/tokenizer_gguf.hpp"
#include "espalier/model/tokenizer/tokenizer/tokenizer_json.hpp"
#include "espalier/model/tokenizer/tokenizer/tokenizer_parts.hpp"

namespace espalier {

namespace detail {

// Reads the files next to a tokenizer into its parts: the tokens that begin and end a text, the chat templates, and
// the variables that the templates read.
class tokenizer_settings {
 public:
  explicit tokenizer_settings(tokenizer_parts& parts) : parts_(parts) {}

  // Reads tokenizer_config.json. Its list of added tokens counts beside a SentencePiece model alone: a tokenizer.json
  // has its own.
  void read_tokenizer_config(std::string_view text, const std::string& where) {
    const nlohmann::json file = parse_json_object(text, where);
    const json_reader config(file, where);
    if (const nlohmann::json* const added = config.find("added_tokens_decoder"); added && is_sentencepiece()) {
      if (!added->is_object()) config.refuse("added_tokens_decoder", *added, "an object of ids and tokens");
      for (const auto& [id, token] : added->items()) {
        if (!token.is_object()) config.refuse("added_tokens_decoder", *added, "an object of ids and tokens");
        const nlohmann::json number = nlohmann::json::parse(id, nullptr, false);
        add(number.is_discarded() ? nlohmann::json(id) : number,
            json_reader(token, where + ": \"added_tokens_decoder\""));
      }
    }
    read_chat_variables(config);
    const std::string begin_mark = mark_of(config, "bos_token"), end_mark = mark_of(config, "eos_token");
    if (!end_mark.empty()) parts_.add_end(id_of(config, "eos_token", end_mark));
    if (config.has("add_bos_token")) {
      const bool adds = config.flag_or("add_bos_token", false) && !begin_mark.empty();
      parts_.begin = adds ? id_of(config, "bos_token", begin_mark) : -1;
    }
    read_chat_template(config);
  }

  // Reads added_tokens.json, an object of texts and ids, which counts beside a SentencePiece model alone. Its tokens
  // are marks: the file does not say which of them are special.
  void read_added_tokens(std::string_view text, const std::string& where) {
    if (!is_sentencepiece()) return;
    const nlohmann::json file = parse_json_object(text, where);
    for (const auto& [content, id] : file.items()) {
      const nlohmann::json token{{"content", content}, {"special", true}};
      add(id, json_reader(token, where));
    }
  }

  // Reads chat_template.json.
  void read_chat_template(std::string_view text, const std::string& where) {
    const nlohmann::json file = parse_json_object(text, where);
    read_chat_template(json_reader(file, where));
  }

  // Reads generation_config.json or config.json: the token that ends a text, or a list of such tokens.
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
  bool is_sentencepiece() const { return std::holds_alternative<sentencepiece_encoder>(parts_.encoder); }

  // Adds a token to the pieces of a SentencePiece model. A piece of the model may be listed, too, and stays as it is.
  void add(const nlohmann::json& id, const json_reader& read) {
    added_token token = read_added_token(id, read);
    const auto& model = std::get<sentencepiece_encoder>(parts_.encoder).processor();
    const auto at = static_cast<std::size_t>(token.id);
    if (token.id < model.GetPieceSize()) {
      if (const std::string& piece = model.IdToPiece(token.id); piece != token.text)
        raise<model_error>(read.where(), ": the token ", token.id, " is \"", token.text, "\", but \"", piece, "\" in ",
                           parts_.where, ".");
      return;
    }
    if (at >= parts_.pieces.size()) parts_.pieces.resize(at + 1);
    parts_.pieces[at] = token.is_mark ? std::string() : token.text;
    parts_.added.add(std::move(token));
  }

  // Reads the variables that transformers gives to chat templates: the special tokens by their names.
  void read_chat_variables(const json_reader& config) {
    for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"})
      if (const std::string mark = mark_of(config, key); !mark.empty()) parts_.chat_variables[key] = mark;
    const auto content_of = [](const nlohmann::json& token) {
      const auto content = token.is_object() ? token.find("content") : token.end();
      return token.is_object() && content != token.end() ? *content : token;
    };
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
      const nlohmann::json* const tokens = config.find(key);
      if (!tokens) continue;
      for (const auto& [name, token] : tokens->items()) {
        const nlohmann::json content = content_of(token);
        if (!content.is_string()) config.refuse(key, *tokens, "texts, or objects with a content");
        if (tokens->is_object()) {
          parts_.chat_variables[name] = content.get<std::string>();
        } else {
          parts_.chat_variables["additional_special_tokens"].push_back(content.get<std::string>());
        }
      }
    }
  }

  // The text of the token that a key gives, as a string or as an object with a content; empty if there is none.
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

  // Reads the chat template: a text, or a list of named templates, of which it takes "default" and, for chats with
  // tools, "tool_use".
  void read_chat_template(const json_reader& config) {
    const nlohmann::json* const chat = config.find("chat_template");
    if (!chat) return;
    if (chat->is_string()) {
      parts_.chat_template = chat->get<std::string>();
      return;
    }
    const nlohmann::json list = chat->is_array() ? *chat : nlohmann::json::array({nullptr});
    for (const nlohmann::json& entry : list) {
      if (!entry.is_object())
        config.refuse("chat_template", *chat, "a string, or a list of objects with name and template");
      const json_reader named(entry, config.where() + ": \"chat_template\"");
      const std::string name = named.text_or("name", "");
      if (name == "default") parts_.chat_template = named.text_or("template", "");
      if (name == "tool_use") parts_.tool_template = named.text_or("template", "");
    }
  }

  tokenizer_parts& parts_;
};

// The tokenizer in the bytes of a SentencePiece model.
//
// Errors      model_error for bytes that are no such model
inline tokenizer_parts read_sentencepiece(std::string_view bytes, const std::string& where) {
  tokenizer_parts parts{where, {}, {}, sentencepiece_encoder(bytes, where)};
  const auto& model = std::get<sentencepiece_encoder>(parts.encoder).processor();
  for (int id = 0; id < model.GetPieceSize(); ++id) {
    const std::string& word = model.IdToPiece(id);
    std::string piece;
    if (model.IsControl(id)) {
      parts.added.add({word, id, true});
    } else if (model.IsUnknown(id)) {
      piece = replacement_character;
    } else if (model.IsByte(id)) {
      piece = std::string(1, static_cast<char>(byte_of(word)));
    } else if (!model.IsUnused(id)) {
      piece = replaced(word, space_mark, " ");
    }
    parts.pieces.push_back(std::move(piece));
  }
  parts.begin = model.bos_id();
  for (const auto& [name, token] : {std::pair{"bos_token", model.bos_id()},
                                    {"eos_token", model.eos_id()},
                                    {"unk_token", model.unk_id()},
                                    {"pad_token", model.pad_id()}})
    if (token >= 0) parts.chat_variables[name] = model.IdToPiece(token);
  if (model.eos_id() >= 0) parts.add_end(model.eos_id());
  parts.add_named_ends();
  return parts;
}

// The files of a tokenizer in a folder of Hugging Face's form.
inline constexpr const char* tokenizer_files[] = {
    "tokenizer.json",        "tokenizer.model",        "added_tokens.json",
    "tokenizer_config.json", "generation_config.json", "config.json",
    "chat_template.json",    "chat_template.jinja",    "additional_chat_templates/tool_use.jinja"};

// Returns the parts of the tokenizer in a folder of Hugging Face's form.
//
// Errors      model_error for a folder without a tokenizer, and for a file in it that cannot be read or used
inline tokenizer_parts read_tokenizer_folder(const std::string& folder) {
  const std::string file = folder + "/tokenizer.json", model = folder + "/tokenizer.model";
  const bool has_file = std::filesystem::is_regular_file(file);
  if (!has_file && !std::filesystem::is_regular_file(model))
    raise<model_error>("the folder ", folder, " has neither a tokenizer.json nor a tokenizer.model.");
  tokenizer_parts parts =
      has_file ? tokenizer_json(whole_file(file), file).parts() : read_sentencepiece(whole_file(model), model);
  tokenizer_settings settings(parts);
  const auto each = [&](const char* name, auto&& read) {
    const std::string path = folder + "/" + name;
    if (std::filesystem::is_regular_file(path)) read(whole_file(path), path);
  };
  each("added_tokens.json", [&](const auto& text, const auto& path) { settings.read_added_tokens(text, path); });
  each("tokenizer_config.json",
       [&](const auto& text, const auto& path) { settings.read_tokenizer_config(text, path); });
  each("generation_config.json", [&](const auto& text, const auto& path) { settings.read_ends(text, path); });
  each("config.json", [&](const auto& text, const auto& path) { settings.read_ends(text, path); });
  each("chat_template.json", [&](const auto& text, const auto& path) { settings.read_chat_template(text, path); });
  each("chat_template.jinja", [&](const auto& text, const auto&) { parts.chat_template = text; });
  each("additional_chat_templates/tool_use.jinja", [&](const auto& text, const auto&) { parts.tool_template = text; });
  return parts;
}

}  // namespace detail

//! A piece of a prompt. Special tokens are recognised only in trusted pieces: the marks of a chat template are trusted;
//! the words of a user, a file or a model are plain text.
struct prompt_piece {
  std::string text;
  bool is_trusted = false;

  friend bool operator==(const prompt_piece&, const prompt_piece&) = default;
};

//! Converts text to tokens and back by a model's own files: a byte-pair encoding, unigram or WordPiece model of Hugging
//! Face's tokenizer.json or of a GGUF file, or a SentencePiece model.
//!
//! Special tokens, such as <|im_end|>, and added tokens whose text stands in the chat template, are recognised only in
//! trusted text. In any other text they are ordinary characters: no text can end a turn by containing them. Marks that
//! are no tokens of their own, such as [INST] of Llama 2, are text like any other. Other added tokens, and the pieces
//! that a SentencePiece model calls user-defined, are recognised in any text.
//!
//! Law         decode(tokens) is the concatenation of piece(token), byte for byte: text may be shown token by token; a
//!             character may be spread over several tokens
//! Complexity  encoding n bytes: O(n log n) for a given vocabulary
//! Errors      functions that read a file: model_error that names the file, the part that does not fit, and what is
//!             supported; functions that encode: input_error for a text, or pieces together, of more than 2^28 bytes,
//!             and for a text over which a pattern of the file takes too many steps
class tokenizer {
 public:
  //! Reads a tokenizer from a folder with a tokenizer.json, or else a tokenizer.model, together with
  //! tokenizer_config.json, generation_config.json, config.json and the files of chat templates if they are there; from
  //! one of the first two files alone; or from a GGUF file. A file whose name ends neither in .json nor in .gguf is
  //! read as a tokenizer.model.
  static tokenizer load(const std::string& path) {
    if (!std::filesystem::is_directory(path)) {
      if (path.ends_with(".json")) return from_json(detail::whole_file(path), path);
      if (path.ends_with(".gguf")) return from_gguf(gguf_file(path).metadata());
      return from_sentencepiece(detail::whole_file(path), path);
    }
    return tokenizer(detail::read_tokenizer_folder(path));
  }

  //! Reads the text of a tokenizer.json; `where` names it in messages.
  static tokenizer from_json(std::string_view text, const std::string& where) {
    return tokenizer(detail::tokenizer_json(text, where).parts());
  }

  //! Reads the tokenizer in the metadata of a GGUF file.
  static tokenizer from_gguf(const gguf_metadata& metadata) {
    return tokenizer(detail::tokenizer_gguf(metadata).parts());
  }

  //! Reads the bytes of a SentencePiece model; `where` names it in messages.
  static tokenizer from_sentencepiece(std::string_view bytes, const std::string& where) {
    return tokenizer(detail::read_sentencepiece(bytes, where));
  }

  //! Number of token ids: all tokens are below it.
  int size() const { return static_cast<int>(parts_.pieces.size()); }

  //! The token that a prompt begins with, or -1 if the model's files put none before a text.
  token_id begin_of_text() const { return parts_.begin; }

  //! The tokens that end a text or an answer, ascending.
  const std::vector<token_id>& ends_of_text() const { return parts_.ends; }

  //! The special token that is written as `mark`, or another added token that is searched for before a text is
  //! normalised; -1 if there is none.
  token_id find(std::string_view mark) const {
    const detail::added_token* const token = parts_.added.find(mark);
    return token ? token->id : -1;
  }

  //! The special tokens, each with the mark that it is written as.
  std::vector<std::pair<token_id, std::string>> marks() const {
    std::vector<std::pair<token_id, std::string>> marks;
    for (const detail::added_token& token : parts_.added.all())
      if (token.is_mark) marks.emplace_back(token.id, token.text);
    return marks;
  }

  //! True for a token that stands for one byte of a character without a token of its own, as <0x0A> does. A vocabulary
  //! with such tokens may have another token with the same bytes, which is the one that texts are encoded with.
  //!
  //! Pre         0 <= token < size()
  bool is_byte(token_id token) const {
    return piece(token).size() == 1 &&
           std::visit([&](const auto& encoder) { return encoder.falls_back_to(token); }, parts_.encoder);
  }

  //! The tokens of a text that is not trusted. Bytes that are not UTF-8 are replaced by U+FFFD.
  std::vector<token_id> encode(std::string_view text) const {
    std::vector<token_id> tokens;
    append(clean(text), {}, tokens);
    return tokens;
  }

  //! The tokens of a trusted text, in which special tokens are recognised.
  std::vector<token_id> encode_trusted(std::string_view text) const {
    const std::string whole = clean(text);
    const detail::text_range all{0, whole.size()};
    std::vector<token_id> tokens;
    append(whole, {&all, 1}, tokens);
    return tokens;
  }

  //! The tokens of pieces that together are one text. A special token is recognised if it lies within consecutive
  //! trusted pieces.
  std::vector<token_id> encode_pieces(std::span<const prompt_piece> pieces) const {
    std::string text;
    std::vector<detail::text_range> trusted;
    for (const prompt_piece& piece : pieces) {
      const std::size_t begin = text.size();
      require_size(begin + piece.text.size());
      text += clean(piece.text);
      if (!piece.is_trusted) continue;
      if (trusted.empty() || trusted.back().end != begin) trusted.push_back({begin, begin});
      trusted.back().end = text.size();
    }
    std::vector<token_id> tokens;
    append(text, trusted, tokens);
    return tokens;
  }

  //! The tokens of a text, not trusted, that a model is to continue; they begin with begin_of_text if there is one.
  std::vector<token_id> encode_prompt(std::string_view text) const {
    std::vector<token_id> tokens;
    if (begin_of_text() >= 0) tokens.push_back(begin_of_text());
    append(clean(text), {}, tokens);
    return tokens;
  }

  //! The bytes that a token stands for: U+FFFD for the model's unknown token; no bytes for any other special token, for
  //! an unused token, and for a number that is no token. Valid as long as the tokenizer lives.
  std::string_view piece(token_id token) const {
    if (token < 0 || token >= size()) return {};
    return parts_.pieces[static_cast<std::size_t>(token)];
  }

  std::string decode(std::span<const token_id> tokens) const {
    std::string text;
    for (const token_id token : tokens)
      text += piece(token);
    return text;
  }

  //! The file that the tokenizer was read from, for messages.
  const std::string& where() const { return parts_.where; }

  //! The chat template in the tokenizer's files, and the one for chats with tools; each is empty if there is none.
  const std::string& chat_template_text() const { return parts_.chat_template; }
  const std::string& tool_template_text() const { return parts_.tool_template; }
  //! The variables that the files give to chat templates: an object of special tokens, such as bos_token.
  const nlohmann::ordered_json& chat_variables() const { return parts_.chat_variables; }

 private:
  explicit tokenizer(detail::tokenizer_parts parts) : parts_(std::move(parts)) {
    // A token that the template writes between messages is a mark, even if the file does not call it special.
    const auto mark_those_of = [&](detail::added_tokens& of) {
      for (detail::added_token& token : of.take_those_in(parts_.chat_template + "\n" + parts_.tool_template)) {
        token.is_mark = true;
        token.spelled.clear();
        parts_.added.add(std::move(token));
      }
    };
    mark_those_of(parts_.added);
    if (auto* const encoder = std::get_if<detail::word_encoder>(&parts_.encoder)) mark_those_of(encoder->added);
    parts_.add_named_ends();
  }

  static std::string clean(std::string_view text) {
    require_size(text.size());
    std::string whole;
    whole.reserve(text.size());
    while (!text.empty()) {
      const utf8_character c = read_utf8(text);
      if (c.what == utf8_character::state::valid) {
        whole += text.substr(0, c.bytes);
      } else {
        for (std::size_t i = 0; i < c.bytes; ++i)
          whole += detail::replacement_character;
      }
      text.remove_prefix(c.bytes);
    }
    return whole;
  }

  void append(std::string_view text, std::span<const detail::text_range> trusted, std::vector<token_id>& tokens) const {
    parts_.added.each(
        text, trusted,
        [&](std::size_t begin, std::size_t end) {
          const std::string_view fragment = text.substr(begin, end - begin);
          std::visit([&](const auto& encoder) { encoder.append(fragment, begin == 0, tokens); }, parts_.encoder);
        },
        [&](token_id token) { tokens.push_back(token); });
  }

  static void require_size(std::size_t bytes) {
    constexpr std::size_t most = 1U << 28;
    if (bytes > most) raise<input_error>("a text has ", bytes, " bytes, but at most ", most, " are encoded at once.");
  }

  detail::tokenizer_parts parts_;
};

}  // namespace espalier
