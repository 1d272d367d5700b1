// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <sentencepiece_processor.h>
#include <nlohmann/json.hpp>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/util/utf8.hpp"
#include "espalier/model/files/json_reader.hpp"
#include "espalier/model/tokenizer/tokenizer/added_tokens.hpp"
#include "espalier/model/tokenizer/tokenizer/word_encoder.hpp"

namespace espalier::detail {

// The character by which byte-level vocabularies write each byte: its character of Latin-1, if that is printable and no
// space; the other bytes are written as U+0100 and the characters after it, in order.
//
// Source      Radford et al., Language Models are Unsupervised Multitask Learners, section 2.2, and its code
inline constexpr std::array<char32_t, 256> byte_spellings = [] {
  std::array<char32_t, 256> spellings{};
  char32_t next = 256;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool prints = (byte > 32 && byte < 127) || (byte > 160 && byte != 173);
    spellings[byte] = prints ? byte : next++;
  }
  return spellings;
}();

// The bytes that a word stands for. A word with a character that stands for no byte stands for itself.
//
// Pre         word is UTF-8
inline std::string bytes_spelled(std::string_view word) {
  static constexpr auto bytes = [] {
    std::array<int, 512> table{};
    table.fill(-1);
    for (std::size_t byte = 0; byte < 256; ++byte)
      table[byte_spellings[byte]] = static_cast<int>(byte);
    return table;
  }();
  std::string spelled;
  for (std::string_view rest = word; !rest.empty();) {
    const utf8_character c = read_utf8(rest);
    if (c.what != utf8_character::state::valid || c.code >= bytes.size() || bytes[c.code] < 0) return std::string(word);
    spelled += static_cast<char>(bytes[c.code]);
    rest.remove_prefix(c.bytes);
  }
  return spelled;
}

// The character that stands for a byte, in UTF-8.
inline std::string spelling_of(unsigned char byte) {
  const char32_t code = byte_spellings[byte];
  if (code < 0x80) return {static_cast<char>(code)};
  return {static_cast<char>(0xC0U | (code >> 6U)), static_cast<char>(0x80U | (code & 0x3FU))};
}

// The bytes that a base64 text encodes, read up to the first character that is no digit of base64.
inline std::string bytes_of_base64(std::string_view text) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  std::uint32_t value = 0;
  int bits = 0;
  for (const char c : text) {
    const std::size_t digit = digits.find(c);
    if (digit == std::string_view::npos) break;
    value = value << 6U | static_cast<std::uint32_t>(digit);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(value >> static_cast<unsigned>(bits) & 0xFFU);
  }
  return bytes;
}

// Encodes text with the library SentencePiece.
class sentencepiece_encoder {
 public:
  // Reads a model from its bytes.
  //
  // Errors      model_error for bytes that are no SentencePiece model
  sentencepiece_encoder(std::string_view bytes, const std::string& where)
      : processor_(std::make_unique<sentencepiece::SentencePieceProcessor>()) {
    if (bytes.empty() || !processor_->LoadFromSerializedProto({bytes.data(), bytes.size()}).ok())
      raise<model_error>(where, " is not a SentencePiece model.");
  }

  const sentencepiece::SentencePieceProcessor& processor() const { return *processor_; }

  bool falls_back_to(token_id token) const { return processor_->IsByte(token); }

  void append(std::string_view fragment, bool, std::vector<token_id>& tokens) const {
    std::vector<int> ids;
    processor_->Encode({fragment.data(), fragment.size()}, &ids).IgnoreError();
    tokens.insert(tokens.end(), ids.begin(), ids.end());
  }

 private:
  std::unique_ptr<sentencepiece::SentencePieceProcessor> processor_;
};

// The mark of SentencePiece for a space, U+2581.
inline constexpr std::string_view space_mark = "\xE2\x96\x81";

// The character for bytes that are no text, U+FFFD.
inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

// The most tokens that a file may have. No vocabulary is that large: a file that says more is damaged.
inline constexpr int most_tokens = 1 << 21;

// The byte that a token such as <0x0A> stands for, or -1.
inline int byte_of(std::string_view word) {
  unsigned byte = 0;
  const bool has_form = word.size() == 6 && word.substr(0, 3) == "<0x" && word.back() == '>';
  if (!has_form) return -1;
  const auto [end, fault] = std::from_chars(word.data() + 3, word.data() + 5, byte, 16);
  return fault == std::errc{} && end == word.data() + 5 ? static_cast<int>(byte) : -1;
}

// True if a word is exactly one character of UTF-8.
inline bool is_one_character(std::string_view word) {
  if (word.empty()) return false;
  const utf8_character c = read_utf8(word);
  return c.what == utf8_character::state::valid && c.bytes == word.size();
}

// Reads the number of a token of a file of Hugging Face's form.
//
// Errors      model_error for anything else than an integer from 0 to most_tokens - 1
inline token_id read_token_id(const nlohmann::json& id, std::string_view word, const std::string& where) {
  if (!id.is_number_integer() || id < 0 || id >= most_tokens) {
    raise<model_error>(where, ": the token \"", word, "\" has the id ", id.dump(), ", but ids are from 0 to ",
                       most_tokens - 1, ".");
  }
  return id.get<token_id>();
}

// Reads an added token of a file of Hugging Face's form: content, lstrip, rstrip and special.
//
// Errors      model_error for single_word, and for an id that is no token's
inline added_token read_added_token(const nlohmann::json& id, const json_reader& from) {
  added_token token;
  token.text = from.text_or("content", "");
  token.id = read_token_id(id, token.text, from.where());
  token.takes_left = from.flag_or("lstrip", false);
  token.takes_right = from.flag_or("rstrip", false);
  token.is_mark = from.flag_or("special", false);
  if (from.flag_or("single_word", false)) {
    raise<model_error>(from.where(), ": \"", token.text,
                       "\" has single_word, which is not supported: it must be false.");
  }
  return token;
}

// The parts of a tokenizer, whichever file it comes from.
struct tokenizer_parts {
  std::string where;                // name of the file, for messages
  std::vector<std::string> pieces;  // the bytes that each token stands for
  added_tokens added;               // tokens that are found in the text before normalisation
  std::variant<word_encoder, sentencepiece_encoder> encoder;
  token_id begin = -1;                           // the token before a prompt, -1: none
  std::vector<token_id> ends{};                  // ascending
  std::string chat_template{}, tool_template{};  // the chat template in the file, and the one for chats with tools
  nlohmann::ordered_json chat_variables = nlohmann::ordered_json::object();  // special tokens, for chat templates

  void add_end(token_id token) {
    const auto place = std::lower_bound(ends.begin(), ends.end(), token);
    if (place == ends.end() || *place != token) ends.insert(place, token);
  }

  // Adds to `ends` the special tokens whose names say that they end a text or an answer, even if the file does
  // not list them as ends.
  void add_named_ends() {
    for (const std::string_view name :
         {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>"}) {
      const added_token* const token = added.find(name);
      if (token && token->is_mark) add_end(token->id);
    }
  }
};

}  // namespace espalier::detail
