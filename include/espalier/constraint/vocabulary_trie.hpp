// SPDX-License-Identifier: BSL-1.0
// Tested by tests/constraint/regular_expression.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/require_token.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/util/utf8.hpp"

namespace espalier {

//! A tree of the prefixes of a vocabulary's tokens, in bytes: a constraint finds out in one walk over the prefixes
//! which of thousands of tokens a state allows. Copies share one tree, which never changes.
//!
//! Complexity  construction: O(bytes log tokens)
//! Errors      input_error for an ending token that is not in the vocabulary, for a token of more than 65535 bytes
//!             that does not end texts, and if no token has bytes
class vocabulary_trie {
 public:
  //! A prefix. The nodes are in preorder: directly after a prefix come all longer prefixes that begin with it.
  struct node {
    std::int32_t skip;  //!< index of the next prefix that does not begin with this one
    //! The tokens that equal this prefix are those in tokens() from index first_token up to, but without, the next
    //! node's first_token. If the two numbers are equal, no token equals it.
    std::int32_t first_token;
    std::uint16_t depth;  //!< number of bytes before the last one
    std::uint8_t byte;    //!< the last byte
    bool is_mixed;        //!< whether characters() is 0 for some token that begins with this prefix
  };

  //! Makes the tree of these tokens.
  //!
  //! Shapes      pieces [vocab]: the bytes that each token adds to a text. ends: the tokens that end a text; their
  //!             bytes are ignored. Any other token without bytes, such as one that marks a turn, is never allowed by
  //!             a constraint, because it is not in the tree
  vocabulary_trie(std::vector<std::string> pieces, std::vector<token_id> ends)
      : data_(std::make_shared<const data>(build(std::move(pieces), std::move(ends)))) {}

  std::int32_t size() const { return static_cast<std::int32_t>(data_->pieces.size()); }
  //! The bytes of a token; none for a token that ends texts.
  //!
  //! Pre         0 <= token < size()
  const std::string& piece(token_id token) const { return data_->pieces[static_cast<std::size_t>(token)]; }
  std::span<const token_id> ends() const { return data_->ends; }
  //! All prefixes, in the order that `node` describes. One more node follows the last prefix: its first_token is the
  //! end of that prefix's tokens.
  std::span<const node> nodes() const { return data_->nodes; }
  //! The tokens of the tree, in the order of their bytes.
  std::span<const token_id> tokens() const { return data_->tokens; }
  //! The number of characters of each token, by its index in tokens(); 0 for tokens that are not text, and for text of
  //! more than 255 characters. A token is text if it consists of whole characters that stand unescaped in a JSON
  //! string: no quotation marks, backslashes or control characters.
  std::span<const std::uint8_t> characters() const { return data_->characters; }
  //! All tokens that are text of at most 255 characters, as a Constraint's mask.
  std::span<const std::uint32_t> text() const { return data_->text; }
  //! The largest number in characters().
  std::int32_t max_characters() const { return data_->max_characters; }
  //! The number of bytes of the longest token.
  std::int32_t max_depth() const { return data_->max_depth; }

  //! The longest token with which the coming bytes begin, the one with the lowest number if several are equal; no value
  //! if there is none. next() returns one coming byte a call, and -1 after the last.
  //!
  //! Complexity  O(bytes read x number of different bytes that may follow a prefix). It stops reading as soon as no
  //!             token begins with the bytes read so far
  template <class NextByteT>
  std::optional<token_id> longest(NextByteT&& next) const {
    const std::span<const node> all = data_->nodes;
    std::optional<token_id> token;
    // [i, end): the prefixes that begin with the bytes read so far and are longer; at first, all prefixes
    std::size_t i = 0, end = all.size() - 1;
    for (int byte = next(); byte >= 0; byte = next()) {
      while (i < end && all[i].byte != byte)
        i = static_cast<std::size_t>(all[i].skip);
      if (i >= end) break;
      if (all[i].first_token < all[i + 1].first_token)
        token = data_->tokens[static_cast<std::size_t>(all[i].first_token)];
      end = static_cast<std::size_t>(all[i].skip);
      ++i;
    }
    return token;
  }

 private:
  struct data {
    std::vector<std::string> pieces;
    std::vector<token_id> ends, tokens;
    std::vector<node> nodes;
    std::vector<std::uint8_t> characters;
    std::vector<std::uint32_t> text;
    std::int32_t max_depth = 0, max_characters = 0;
  };

  static std::uint8_t characters_of(std::string_view piece) {
    std::size_t n = 0;
    for (; !piece.empty(); ++n) {
      const utf8_character next = read_utf8(piece);
      const bool is_text =
          next.what == utf8_character::state::valid && next.code >= 0x20 && next.code != '"' && next.code != '\\';
      if (!is_text || n == 255) return 0;
      piece.remove_prefix(next.bytes);
    }
    return static_cast<std::uint8_t>(n);
  }

  static data build(std::vector<std::string> pieces, std::vector<token_id> ends) {
    data d;
    d.pieces = std::move(pieces);
    d.ends = std::move(ends);
    d.text.resize((d.pieces.size() + 31) / 32, 0);
    for (const token_id t : d.ends) {
      detail::require_known_token("the ends of texts", t, static_cast<std::int32_t>(d.pieces.size()));
      d.pieces[static_cast<std::size_t>(t)].clear();
    }
    const auto piece = [&](token_id t) -> const std::string& { return d.pieces[static_cast<std::size_t>(t)]; };
    std::vector<token_id> order(d.pieces.size());
    std::iota(order.begin(), order.end(), 0);
    std::erase_if(order, [&](token_id t) { return piece(t).empty(); });
    for (const token_id t : order) {
      constexpr std::size_t longest = 0xFFFF;
      if (piece(t).size() > longest) {
        raise<input_error>("token ", t, " of the vocabulary has ", piece(t).size(), " bytes, but must have at most ",
                           longest, " for a constraint.");
      }
    }
    std::stable_sort(order.begin(), order.end(), [&](token_id a, token_id b) { return piece(a) < piece(b); });
    if (order.empty()) raise<input_error>("no token of the vocabulary has bytes: a constraint could allow none.");
    std::vector<std::int32_t> open;  // the nodes of the last token's prefixes
    const auto close = [&](std::size_t depth) {
      for (; open.size() > depth; open.pop_back())
        d.nodes[static_cast<std::size_t>(open.back())].skip = static_cast<std::int32_t>(d.nodes.size());
    };
    const std::string* last = nullptr;
    for (const token_id t : order) {
      const std::string& p = piece(t);
      std::size_t common = 0;
      while (last != nullptr && common < p.size() && common < last->size() && p[common] == (*last)[common])
        ++common;
      close(common);
      for (std::size_t i = common; i < p.size(); ++i) {
        open.push_back(static_cast<std::int32_t>(d.nodes.size()));
        d.nodes.push_back({0, static_cast<std::int32_t>(d.tokens.size()), static_cast<std::uint16_t>(i),
                           static_cast<std::uint8_t>(p[i]), false});
      }
      d.tokens.push_back(t);
      d.characters.push_back(characters_of(p));
      d.max_characters = (std::max)(d.max_characters, std::int32_t{d.characters.back()});
      if (d.characters.back() > 0) d.text[static_cast<std::size_t>(t) / 32] |= 1U << t % 32;
      for (const std::int32_t prefix : open)
        d.nodes[static_cast<std::size_t>(prefix)].is_mixed |= d.characters.back() == 0;
      d.max_depth = (std::max)(d.max_depth, static_cast<std::int32_t>(p.size()));
      last = &p;
    }
    close(0);
    d.nodes.push_back(
        {static_cast<std::int32_t>(d.nodes.size()), static_cast<std::int32_t>(d.tokens.size()), 0, 0, false});
    return d;
  }

  std::shared_ptr<const data> data_;
};

}  // namespace espalier
