// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "espalier/core/util/utf8.hpp"

namespace espalier::detail {

// The character by which byte-level vocabularies write each byte: printable characters of Latin-1 stand for themselves,
// all other bytes are U+0100 and on, in order.
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

}  // namespace espalier::detail
