// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <charconv>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/model/tokenizer/tokenizer/added_tokens.hpp"
#include "espalier/model/tokenizer/tokenizer/byte_pair_encoder.hpp"
#include "espalier/model/tokenizer/tokenizer/sentencepiece_encoder.hpp"

namespace espalier::detail {

// The mark of SentencePiece for a space, U+2581.
inline constexpr std::string_view space_mark = "\xE2\x96\x81";

// The character for bytes that are no text, U+FFFD.
inline constexpr std::string_view replacement_character = "\xEF\xBF\xBD";

// A number of tokens that no vocabulary has: a file that says more is damaged.
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

// The parts of a tokenizer, whichever file it comes from.
struct tokenizer_parts {
  std::string where;                // the file, in messages
  std::vector<std::string> pieces;  // the bytes that each token stands for
  added_tokens added;               // tokens that are found in the text before normalisation
  std::variant<byte_pair_encoder, sentencepiece_encoder> encoder;
  token_id begin = -1;           // the token before a prompt, -1: none
  std::vector<token_id> ends{};  // ascending
  // The chat template in the file, and the values of its variables bos_token and eos_token.
  std::string chat_template{}, begin_mark{}, end_mark{};

  void add_end(token_id token) {
    const auto place = std::lower_bound(ends.begin(), ends.end(), token);
    if (place == ends.end() || *place != token) ends.insert(place, token);
  }

  // Adds the marks that by their names end a text or an answer, even if the file does not list them as ends.
  void add_named_ends() {
    for (const std::string_view name :
         {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>"}) {
      const added_token* const token = added.find(name);
      if (token && token->is_mark) add_end(token->id);
    }
  }
};

}  // namespace espalier::detail
