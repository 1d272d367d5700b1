// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace espalier {

//! The first character of a text that may be cut off or damaged.
struct utf8_character {
  enum class state {
    valid,
    cut,     //!< the text ends within a character that has been valid so far
    broken,  //!< no character begins like this
  };
  state what = state::cut;
  char32_t code = 0;      //!< the code point, if valid; else 0
  std::size_t bytes = 0;  //!< number of bytes that the character takes: 1 if broken, all bytes of the text if cut
};

//! Reads one character of UTF-8. Overlong forms, surrogates and codes beyond U+10FFFF are broken.
//!
//! Pre         text is not empty
constexpr utf8_character read_utf8(std::string_view text) {
  using state = utf8_character::state;
  const auto byte = [&](std::size_t i) { return static_cast<std::uint32_t>(static_cast<unsigned char>(text[i])); };
  const std::uint32_t first = byte(0);
  if (first < 0x80) return {state::valid, first, 1};
  const std::size_t length = first >= 0xF0 ? 4 : (first >= 0xE0 ? 3 : 2);
  if (first < 0xC2 || first > 0xF4) return {state::broken, 0, 1};
  std::uint32_t code = first & (0xFFU >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {state::cut, 0, i};
    if ((byte(i) & 0xC0U) != 0x80) return {state::broken, 0, 1};
    code = code << 6U | (byte(i) & 0x3FU);
    // The second byte shows whether a form is overlong, a surrogate or too large.
    const bool too_small = i == 1 && ((length == 3 && code < 0x20) || (length == 4 && code < 0x10));
    const bool too_large = i == 1 && length == 4 && code > 0x10F;
    const bool surrogate = i == 1 && length == 3 && code >= 0x360 && code <= 0x37F;
    if (too_small || too_large || surrogate) return {state::broken, 0, 1};
  }
  return {state::valid, code, length};
}

//! About how many columns a character takes in a terminal: 0 for the most frequent combining marks, characters of no
//! width and variation selectors, 2 for wide East Asian characters and most pictures, else 1.
constexpr int terminal_width(char32_t code) {
  const auto within = [&](char32_t low, char32_t high) { return code >= low && code <= high; };
  if (within(0x300, 0x36F) || within(0x200B, 0x200F) || within(0xFE00, 0xFE0F)) return 0;
  const bool wide = within(0x1100, 0x115F) || within(0x2E80, 0x303E) || within(0x3041, 0xA4CF) ||
                    within(0xAC00, 0xD7A3) || within(0xF900, 0xFAFF) || within(0xFE30, 0xFE6F) ||
                    within(0xFF00, 0xFF60) || within(0xFFE0, 0xFFE6) || within(0x1F300, 0x1FAFF) ||
                    within(0x20000, 0x3FFFD);
  return wide ? 2 : 1;
}

}  // namespace espalier
