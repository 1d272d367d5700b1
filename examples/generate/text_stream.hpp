// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <ostream>
#include <string>
#include <string_view>

#include "espalier/core/util/utf8.hpp"
#include "espalier/decoder/round.hpp"
#include "espalier/model/tokenizer/tokenizer.hpp"

namespace generate {

//! The author of a piece of text.
enum class author { prompt, draft, target };

//! Shows text while it is written, in whole characters: bytes of an incomplete character wait for the rest. Bytes that
//! are no character, and control characters other than line end and tab, are shown as U+FFFD.
class text_stream {
 public:
  //! Makes a stream. With colour, each author has a colour of its own; without, no escape codes are written.
  text_stream(std::ostream& out, bool colour) : out_(out), colour_(colour) {}

  void push(std::string_view piece, author from) {
    waiting_ += piece;
    std::string_view rest = waiting_;
    while (!rest.empty()) {
      const espalier::utf8_character c = espalier::read_utf8(rest);
      if (c.what == espalier::utf8_character::state::cut) break;
      show(c, rest.substr(0, c.bytes), from);
      rest.remove_prefix(c.bytes);
    }
    waiting_.erase(0, waiting_.size() - rest.size());
    last_ = from;
    out_.flush();
  }

  //! Shows the tokens of a round: the last one is the target's.
  void push_round(const espalier::round_record& r, const espalier::tokenizer& tokenizer) {
    for (std::size_t i = 0; i < r.committed.size(); ++i)
      push(tokenizer.piece(r.committed[i]), i + 1 == r.committed.size() ? author::target : author::draft);
  }

  //! Ends the text: shows bytes that still wait, and resets the colour.
  void finish() {
    if (!waiting_.empty()) show({espalier::utf8_character::state::broken, 0, 1}, "", last_);
    waiting_.clear();
    if (colour_ && coloured_) out_ << "\x1b[0m";
    coloured_ = false;
    out_.flush();
  }

 private:
  void show(const espalier::utf8_character& c, std::string_view bytes, author from) {
    if (colour_ && (!coloured_ || from != shown_)) out_ << code(from);
    coloured_ = true;
    shown_ = from;
    const bool control = (c.code < 0x20 && c.code != '\n' && c.code != '\t') || (c.code >= 0x7F && c.code < 0xA0);
    out_ << (c.what == espalier::utf8_character::state::valid && !control ? bytes : "\xEF\xBF\xBD");
  }

  // The escape code of an author's colour.
  static const char* code(author from) {
    switch (from) {
      case author::prompt:
        return "\x1b[0;2m";
      case author::draft:
        return "\x1b[0;32m";
      case author::target:
        return "\x1b[0;35m";
    }
    return "";
  }

  std::ostream& out_;
  bool colour_;
  bool coloured_ = false;
  author shown_ = author::prompt;
  author last_ = author::prompt;
  std::string waiting_;
};

//! Writes one line that explains the colours.
inline void write_legend(std::ostream& out) {
  out << "\x1b[32mdrafted and accepted\x1b[0m, \x1b[35mthe target model's own\x1b[0m\n\n";
}

}  // namespace generate
