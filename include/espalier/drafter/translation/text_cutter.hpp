// SPDX-License-Identifier: BSL-1.0
// Tested by tests/drafter/recut.cpp
#pragma once

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/util/utf8.hpp"

namespace espalier {

//! A tokenizer: encode(text) gives the tokens of a text, piece(token) the bytes that a token stands for, none for a
//! token that is no text.
//!
//! Models      tokenizer
template <class WordsT>
concept CutsText = requires(const WordsT& words, std::string_view text, token_id token) {
  { words.encode(text) } -> std::convertible_to<std::vector<token_id>>;
  { words.piece(token) } -> std::convertible_to<std::string_view>;
};

namespace detail {

// Returns how many leading bytes of a text are whole characters: all, or all but the beginning of a last one.
inline std::size_t whole_characters(std::string_view text) {
  std::size_t n = 0;
  while (n < text.size()) {
    const utf8_character c = read_utf8(text.substr(n));
    if (c.what == utf8_character::state::cut) break;
    n += c.bytes;
  }
  return n;
}

// Cuts text that stands within a longer text into the tokens of a tokenizer.
template <CutsText WordsT>
class text_cutter {
 public:
  explicit text_cutter(const WordsT& words) : words_(&words) {
    // A tokenizer that puts a space before every text is given a line before it, whose tokens are left out.
    for (const char* before : {"", "\n"}) {
      before_ = before;
      n_before_ = 0;
      for (const token_id t : words.encode(before_))
        n_before_ += words.piece(t).size();
      if (!cut("a").empty()) break;
    }
  }

  const WordsT& words() const { return *words_; }

  // Returns the tokens of a text, whose bytes together are the text; none if the tokenizer has no such tokens.
  std::vector<token_id> cut(std::string_view text) const {
    std::vector<token_id> tokens = words_->encode(before_ + std::string(text));
    std::size_t n = 0, bytes = 0;
    while (n < tokens.size() && bytes < n_before_)
      bytes += words_->piece(tokens[n++]).size();
    tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(n));
    if (bytes != n_before_) return {};
    for (const token_id t : tokens) {
      const std::string_view piece = words_->piece(t);
      if (piece.empty() || !text.starts_with(piece)) return {};
      text.remove_prefix(piece.size());
    }
    return text.empty() ? tokens : std::vector<token_id>{};
  }

 private:
  const WordsT* words_;
  std::string before_;        // the text that is put before each text
  std::size_t n_before_ = 0;  // bytes of its tokens
};

}  // namespace detail

}  // namespace espalier
