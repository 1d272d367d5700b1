// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/util/utf8.hpp"

namespace espalier::detail {

// Splits words into tokens by WordPiece: takes the longest token that the word begins with, then the longest that
// continues it, and so on. A word that cannot be made up so, or is too long, is unknown as a whole.
//
// Complexity  O(n + most_characters * l^2) for a word of n bytes, if the longest token has l bytes
// Source      Wu et al., Google's Neural Machine Translation System, section 4.1, as in Devlin et al., BERT
class word_piece_model {
 public:
  struct parts {
    std::unordered_map<std::string, token_id> begins{}, continues{};  // tokens that begin a word, and that continue one
    token_id unknown = -1;                                            // -1: unknown words are left out
    std::size_t most_characters = 100;
  };
  struct workspace {
    std::vector<token_id> tokens;
    std::string piece;
  };

  explicit word_piece_model(parts p) : parts_(std::move(p)) {
    for (const auto* table : {&parts_.begins, &parts_.continues})
      for (const auto& [text, token] : *table)
        longest_ = (std::max)(longest_, text.size());
  }

  // False: a character without a token is not turned into bytes.
  bool falls_back_to(token_id) const { return false; }

  // Appends the tokens of a word.
  //
  // Pre         the word is UTF-8
  void append(std::string_view word, workspace& work, std::vector<token_id>& tokens) const {
    work.tokens.clear();
    if (!make_up(word, work)) work.tokens.assign(parts_.unknown >= 0 ? 1 : 0, parts_.unknown);
    tokens.insert(tokens.end(), work.tokens.begin(), work.tokens.end());
  }

 private:
  bool make_up(std::string_view word, workspace& work) const {
    const auto is_first = [](char c) { return (static_cast<unsigned char>(c) & 0xC0U) != 0x80; };
    if (static_cast<std::size_t>(std::count_if(word.begin(), word.end(), is_first)) > parts_.most_characters)
      return false;
    for (std::size_t at = 0; at < word.size();) {
      const auto& table = at == 0 ? parts_.begins : parts_.continues;
      std::size_t n = (std::min)(word.size() - at, longest_);
      auto found = table.end();
      for (; n > 0; --n) {
        if (at + n < word.size() && !is_first(word[at + n])) continue;
        work.piece = word.substr(at, n);
        found = table.find(work.piece);
        if (found != table.end()) break;
      }
      if (n == 0) return false;
      work.tokens.push_back(found->second);
      at += n;
    }
    return true;
  }

  parts parts_;
  std::size_t longest_ = 0;
};

}  // namespace espalier::detail
