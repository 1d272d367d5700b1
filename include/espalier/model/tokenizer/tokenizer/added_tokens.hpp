// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/util/utf8.hpp"

namespace espalier::detail {

// A token that is found in the text as a whole, before the text is cut into words.
struct added_token {
  std::string text;
  token_id id = -1;
  bool is_mark = false;      // found only in trusted text: special tokens, and the marks of a chat template
  bool takes_left = false;   // includes the white space before it
  bool takes_right = false;  // includes the white space after it
  std::string spelled{};     // searched for instead of the text, if not empty
};

// A range of bytes.
struct text_range {
  std::size_t begin = 0, end = 0;
};

// Finds added tokens in a text: the leftmost first, and the longest if several begin at one position.
class added_tokens {
 public:
  // Adds a token. Of tokens with equal texts the last one counts; an empty text is never found.
  void add(added_token token) {
    const std::string& sought = token.spelled.empty() ? token.text : token.spelled;
    if (sought.empty()) return;
    std::size_t node = 0;
    for (const char c : sought) {
      const auto [child, is_new] = children_.emplace(edge(node, c), token_at_.size());
      if (is_new) token_at_.push_back(none);
      node = child->second;
    }
    if (token_at_[node] == none) {
      token_at_[node] = tokens_.size();
      tokens_.push_back(std::move(token));
    } else {
      tokens_[token_at_[node]] = std::move(token);
    }
  }

  bool empty() const { return tokens_.empty(); }

  const std::vector<added_token>& all() const { return tokens_; }

  // The token with this text; null if there is none.
  const added_token* find(std::string_view text) const {
    for (const added_token& token : tokens_)
      if (token.text == text) return &token;
    return nullptr;
  }

  // Removes and returns the tokens whose text occurs in a chat template, except tokens of white space only.
  std::vector<added_token> take_those_in(std::string_view chat_template) {
    std::vector<added_token> taken, kept;
    for (added_token& token : tokens_) {
      const bool shows = token.text.find_first_not_of(" \t\r\n") != std::string::npos;
      const bool stands = shows && chat_template.find(token.text) != std::string_view::npos;
      (stands ? taken : kept).push_back(std::move(token));
    }
    *this = {};
    for (added_token& token : kept)
      add(std::move(token));
    return taken;
  }

  // Calls on_token(id) for each token in a text and on_text(begin, end) for each range without tokens, in order.
  // `trusted` are the ranges in which marks are found, in order and without overlap.
  //
  // Complexity  O(bytes * length of the longest token) at most
  template <class TextT, class TokenT>
  void each(std::string_view text, std::span<const text_range> trusted, TextT&& on_text, TokenT&& on_token) const {
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size() && !tokens_.empty();) {
      const added_token* const found = match(text, at, trusted);
      if (!found) {
        ++at;
        continue;
      }
      const std::size_t begin = found->takes_left ? (std::max)(done, space_before(text, at)) : at;
      const std::size_t end = at + (found->spelled.empty() ? found->text : found->spelled).size();
      if (begin > done) on_text(done, begin);
      on_token(found->id);
      done = found->takes_right ? space_after(text, end) : end;
      at = done;
    }
    if (done < text.size()) on_text(done, text.size());
  }

 private:
  const added_token* match(std::string_view text, std::size_t at, std::span<const text_range>& trusted) const {
    while (!trusted.empty() && trusted.front().end <= at)
      trusted = trusted.subspan(1);
    const added_token* longest = nullptr;
    std::size_t node = 0;
    for (std::size_t end = at; end < text.size();) {
      const auto child = children_.find(edge(node, text[end]));
      if (child == children_.end()) break;
      node = child->second;
      ++end;
      if (token_at_[node] == none) continue;
      const added_token& token = tokens_[token_at_[node]];
      const bool is_trusted = !trusted.empty() && trusted.front().begin <= at && end <= trusted.front().end;
      if (!token.is_mark || is_trusted) longest = &token;
    }
    return longest;
  }

  static bool is_space(char32_t c) {
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
  }

  static std::size_t space_after(std::string_view text, std::size_t at) {
    while (at < text.size()) {
      const utf8_character c = read_utf8(text.substr(at));
      if (!is_space(c.code)) break;
      at += c.bytes;
    }
    return at;
  }

  static std::size_t space_before(std::string_view text, std::size_t at) {
    while (at > 0) {
      std::size_t begin = at - 1;
      while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80)
        --begin;
      if (!is_space(read_utf8(text.substr(begin)).code)) break;
      at = begin;
    }
    return at;
  }

  static constexpr std::size_t none = ~std::size_t{0};

  static std::uint64_t edge(std::size_t node, char c) {
    return std::uint64_t{node} << 8U | static_cast<unsigned char>(c);
  }

  std::vector<added_token> tokens_;
  // A trie of the texts: the next node for a node and a byte, and the token that ends at each node.
  std::unordered_map<std::uint64_t, std::size_t> children_;
  std::vector<std::size_t> token_at_{none};
};

}  // namespace espalier::detail
