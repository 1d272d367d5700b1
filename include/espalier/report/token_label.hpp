// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/util/utf8.hpp"

namespace espalier {

//! The text of a token as it can be shown on one line: spaces, line ends and bytes that are no character are made
//! visible.
struct token_label {
  std::string text;  //!< valid UTF-8 without control characters; only ASCII if `ascii` was set
  int width = 0;     //!< in columns of a terminal

  //! Makes the label of a token from the token's bytes. A label of more than max_width columns is cut, and a mark shows
  //! that.
  explicit token_label(std::string_view bytes, bool ascii = false, int max_width = 24) {
    if (bytes.empty()) add(ascii ? "(none)" : "∅", ascii ? 6 : 1);
    while (!bytes.empty()) {
      const utf8_character c = read_utf8(bytes);
      const std::string shown = visible(bytes.substr(0, c.bytes), c, ascii);
      const int columns = is_plain(c, ascii) ? terminal_width(c.code) : count(shown);
      const bool last = c.bytes == bytes.size();
      if (width + columns > max_width - (last ? 0 : 1)) {
        add(ascii ? "~" : "…", 1);
        return;
      }
      add(shown, columns);
      bytes.remove_prefix(c.bytes);
    }
  }

 private:
  void add(std::string_view piece, int columns) {
    text += piece;
    width += columns;
  }

  static bool is_plain(const utf8_character& c, bool ascii) {
    if (c.what != utf8_character::state::valid) return false;
    const bool control = c.code < 0x21 || (c.code >= 0x7F && c.code < 0xA1) || (c.code & 0xFFFEU) == 0xFFFE ||
                         c.code == 0x2028 || c.code == 0x2029;
    return !control && (!ascii || c.code < 0x7F);
  }

  static int count(std::string_view shown) {
    int n = 0;
    for (const char c : shown)
      n += (static_cast<unsigned char>(c) & 0xC0U) != 0x80 ? 1 : 0;
    return n;
  }

  static std::string visible(std::string_view bytes, const utf8_character& c, bool ascii) {
    if (is_plain(c, ascii)) return std::string(bytes);
    if (bytes == " ") return ascii ? "_" : "·";
    if (bytes == "\n") return ascii ? "\\n" : "↵";
    if (bytes == "\t") return ascii ? "\\t" : "⇥";
    constexpr std::string_view digits = "0123456789ABCDEF";
    std::string escaped;
    for (const char b : bytes) {
      const auto byte = static_cast<unsigned char>(b);
      escaped += "\\x";
      escaped += digits[byte / 16U];
      escaped += digits[byte % 16U];
    }
    return escaped;
  }
};

//! The label of a node: its token and, if that was drawn more than once, the number of draws: "the ×3". max_width
//! limits the token, not the number.
inline token_label node_label(tree_view tree, node_id u, std::string_view bytes, bool ascii = false,
                              int max_width = 24) {
  token_label label(bytes, ascii, max_width);
  if (u == root_node) return label;
  int draws = 0;
  for (const node_id child : tree.draws(tree.parent[u]))
    draws += child == u ? 1 : 0;
  if (draws < 2) return label;
  const std::string times = std::to_string(draws);
  label.text += (ascii ? " x" : " ×") + times;
  label.width += 2 + static_cast<int>(times.size());
  return label;
}

}  // namespace espalier
