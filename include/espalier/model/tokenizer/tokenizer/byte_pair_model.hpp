// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/core/util/utf8.hpp"

namespace espalier::detail {

// Two tokens that merge into one. Merges of lower rank come first.
struct token_merge {
  token_id left, right, merged;
  std::int32_t rank;
};

// A hash table of the pairs of tokens that merge, with open addressing.
class merge_table {
 public:
  struct entry {
    std::uint64_t pair = empty_pair;
    std::int32_t rank = 0;
    token_id merged = 0;
  };

  merge_table() : merge_table(std::vector<token_merge>{}) {}
  // Makes the table. Of equal pairs the last one counts.
  explicit merge_table(const std::vector<token_merge>& merges)
      : entries_(std::bit_ceil(2 * merges.size() + 2)), shift_(64 - std::countr_zero(entries_.size())) {
    for (const token_merge& m : merges)
      *place_of(pair_of(m.left, m.right)) = {pair_of(m.left, m.right), m.rank, m.merged};
  }

  // The merge of two tokens; null if they do not merge.
  const entry* find(token_id left, token_id right) const {
    const entry* const found = const_cast<merge_table*>(this)->place_of(pair_of(left, right));
    return found->pair == empty_pair ? nullptr : found;
  }

 private:
  static constexpr std::uint64_t empty_pair = ~std::uint64_t{0};

  static std::uint64_t pair_of(token_id left, token_id right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32U | static_cast<std::uint32_t>(right);
  }

  entry* place_of(std::uint64_t pair) {
    std::size_t at = static_cast<std::size_t>(pair * 0x9E3779B97F4A7C15U >> shift_);
    while (entries_[at].pair != pair && entries_[at].pair != empty_pair)
      at = (at + 1) & (entries_.size() - 1);
    return &entries_[at];
  }

  std::vector<entry> entries_;
  int shift_;
};

// A table in which no byte has a token: -1 for each.
constexpr std::array<token_id, 256> no_byte_tokens() {
  std::array<token_id, 256> none{};
  none.fill(-1);
  return none;
}

// Splits words into tokens by byte-pair encoding: a word begins as a row of bytes or characters; as long as any two
// neighbours can merge, the pair of the lowest rank merges, of equal ranks the leftmost.
//
// Complexity  O(n log n) of n bytes
// Source      Sennrich et al., Neural Machine Translation of Rare Words with Subword Units, section 3.2
class byte_pair_model {
 public:
  // The tokens into which a word is split before any merge, and the merges.
  struct parts {
    bool is_byte_level = false;                              // words begin as bytes, otherwise as characters
    std::array<token_id, 256> bytes = no_byte_tokens();      // token of each byte, -1 if there is none
    std::unordered_map<std::string, token_id> characters{};  // used if words begin as characters
    token_id unknown = -1;                                   // token for characters without one; -1: they are left out
    bool joins_unknown = false;                              // neighbouring unknown characters share one token
    std::unordered_map<std::string, token_id> whole{};       // words that are tokens at once, not merged from parts
    std::vector<token_merge> merges{};
  };

  // Memory for the work on one word after the other.
  struct workspace {
    struct symbol {
      token_id token;
      std::int32_t before, after;  // its neighbours, -1 at the ends
      std::int32_t bytes;          // 0 if it is merged into the symbol before it
    };
    struct candidate {
      std::int32_t rank, left, bytes;
      token_id merged;
      // Reversed, for a heap whose front is the largest: lower ranks come first.
      bool operator<(const candidate& other) const {
        return rank != other.rank ? rank > other.rank : left > other.left;
      }
    };
    std::vector<symbol> symbols;
    std::vector<candidate> heap;
  };

  explicit byte_pair_model(parts p) : parts_(std::move(p)), table_(parts_.merges) {
    parts_.merges.clear();
    parts_.merges.shrink_to_fit();
  }

  // True for a token into which a byte of a character without a token is turned.
  bool falls_back_to(token_id token) const {
    return !parts_.is_byte_level && std::find(parts_.bytes.begin(), parts_.bytes.end(), token) != parts_.bytes.end();
  }

  // Appends the tokens of a word.
  //
  // Pre         the word is UTF-8, of less than 2^31 bytes
  void append(std::string_view word, workspace& work, std::vector<token_id>& tokens) const {
    if (!parts_.whole.empty()) {
      if (const auto found = parts_.whole.find(std::string(word)); found != parts_.whole.end()) {
        tokens.push_back(found->second);
        return;
      }
    }
    work.symbols.clear();
    if (parts_.is_byte_level) {
      for (const char c : word)
        begin_with(parts_.bytes[static_cast<unsigned char>(c)], 1, work);
    } else {
      begin_with_characters(word, work);
    }
    merge(work);
    for (const workspace::symbol& s : work.symbols)
      if (s.bytes > 0) tokens.push_back(s.token);
  }

 private:
  void begin_with(token_id token, std::size_t bytes, workspace& work) const {
    auto& symbols = work.symbols;
    if (token < 0) token = parts_.unknown;
    if (token < 0) return;
    const bool joins = parts_.joins_unknown && token == parts_.unknown;
    if (joins && !symbols.empty() && symbols.back().token == token) {
      symbols.back().bytes += static_cast<std::int32_t>(bytes);
      return;
    }
    const auto at = static_cast<std::int32_t>(symbols.size());
    if (at > 0) symbols.back().after = at;
    symbols.push_back({token, at - 1, -1, static_cast<std::int32_t>(bytes)});
  }

  // Splits a word into its characters, before any merge. A character without a token is split into its bytes if all of
  // them have tokens.
  void begin_with_characters(std::string_view word, workspace& work) const {
    std::string character;
    while (!word.empty()) {
      const std::size_t n = read_utf8(word).bytes;
      character = word.substr(0, n);
      const auto has_token = [&](char c) { return parts_.bytes[static_cast<unsigned char>(c)] >= 0; };
      if (const auto found = parts_.characters.find(character); found != parts_.characters.end()) {
        begin_with(found->second, n, work);
      } else if (std::all_of(character.begin(), character.end(), has_token)) {
        for (const char c : character)
          begin_with(parts_.bytes[static_cast<unsigned char>(c)], 1, work);
      } else {
        begin_with(-1, n, work);
      }
      word.remove_prefix(n);
    }
  }

  void consider(std::int32_t left, workspace& work, bool has_heap) const {
    if (left < 0 || work.symbols[static_cast<std::size_t>(left)].after < 0) return;
    const workspace::symbol& a = work.symbols[static_cast<std::size_t>(left)];
    const workspace::symbol& b = work.symbols[static_cast<std::size_t>(a.after)];
    const merge_table::entry* const found = table_.find(a.token, b.token);
    if (!found) return;
    work.heap.push_back({found->rank, left, a.bytes + b.bytes, found->merged});
    if (has_heap) std::push_heap(work.heap.begin(), work.heap.end());
  }

  void merge(workspace& work) const {
    auto& symbols = work.symbols;
    work.heap.clear();
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i)
      consider(static_cast<std::int32_t>(i), work, false);
    std::make_heap(work.heap.begin(), work.heap.end());
    while (!work.heap.empty()) {
      std::pop_heap(work.heap.begin(), work.heap.end());
      const workspace::candidate best = work.heap.back();
      work.heap.pop_back();
      workspace::symbol& left = symbols[static_cast<std::size_t>(best.left)];
      if (left.bytes == 0 || left.after < 0) continue;
      workspace::symbol& right = symbols[static_cast<std::size_t>(left.after)];
      if (left.bytes + right.bytes != best.bytes) continue;  // one of the two has merged since
      left.token = best.merged;
      left.bytes = best.bytes;
      right.bytes = 0;
      left.after = right.after;
      if (left.after >= 0) symbols[static_cast<std::size_t>(left.after)].before = best.left;
      consider(left.before, work, true);
      consider(best.left, work, true);
    }
  }

  parts parts_;
  merge_table table_;
};

}  // namespace espalier::detail
