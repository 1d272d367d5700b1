// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <string>
#include <string_view>

#include "espalier/core/util/utf8.hpp"

namespace serve {

//! Makes UTF-8 of bytes that arrive in pieces: bytes that may become a character wait for the rest, and bytes that are
//! none become U+FFFD.
//!
//! Law         the text is the same however the bytes were cut into pieces
class whole_characters {
 public:
  //! The characters that are complete with these bytes.
  std::string push(std::string_view bytes) {
    waiting_ += bytes;
    std::string text;
    std::string_view rest = waiting_;
    while (!rest.empty()) {
      const espalier::utf8_character c = espalier::read_utf8(rest);
      if (c.what == espalier::utf8_character::state::cut) break;
      text += c.what == espalier::utf8_character::state::valid ? rest.substr(0, c.bytes) : broken;
      rest.remove_prefix(c.bytes);
    }
    waiting_.erase(0, waiting_.size() - rest.size());
    return text;
  }

  //! Ends the text: bytes that still wait are no character.
  std::string finish() {
    std::string text;
    if (!waiting_.empty()) text = broken;
    waiting_.clear();
    return text;
  }

  //! Converts a whole text at once.
  static std::string of(std::string_view bytes) {
    whole_characters whole;
    std::string text = whole.push(bytes);
    return text + whole.finish();
  }

 private:
  static constexpr std::string_view broken = "\xEF\xBF\xBD";

  std::string waiting_;
};

}  // namespace serve
