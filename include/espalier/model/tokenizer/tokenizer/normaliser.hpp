// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include <utf8proc.h>

#include "espalier/core/error.hpp"
#include "espalier/core/util/utf8.hpp"
#include "espalier/model/tokenizer/tokenizer/text_splitter.hpp"

namespace espalier::detail {

// The text with every occurrence of `from` replaced, from left to right.
inline std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t found = (std::min)(text.find(from, at), text.size());
    result += text.substr(at, found - at);
    if (found < text.size()) result += to;
    at = found < text.size() ? found + from.size() : found;
  }
  return result;
}

// The normalisation forms of Unicode Standard Annex 15.
enum class unicode_form { nfc, nfd, nfkc, nfkd };

// Returns the text in a normalisation form.
//
// Errors      input_error for a text that utf8proc does not take
// Pre         text is UTF-8
inline std::string in_form(std::string text, unicode_form form) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) return text;
  const bool composes = form == unicode_form::nfc || form == unicode_form::nfkc;
  const bool is_wide = form == unicode_form::nfkc || form == unicode_form::nfkd;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (composes ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) | (is_wide ? UTF8PROC_COMPAT : 0));
  utf8proc_uint8_t* bytes = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &bytes, options);
  const std::unique_ptr<utf8proc_uint8_t, void (*)(void*)> owner(bytes, &std::free);
  if (size < 0)
    raise<input_error>("a text of ", text.size(), " bytes cannot be normalised: ", utf8proc_errmsg(size), ".");
  return {reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size)};
}

// A change of a text that has no parameters.
enum class text_change {
  lower_case,
  drop_marks,     // combining marks
  drop_accents,   // nonspacing marks, once the text is in NFD
  drop_controls,  // U+FFFD and the categories C*, except \t, \n and \r, which become spaces, as does white space
  part_han,       // a space before and after each Chinese character
  trim_left,      // white space at the beginning
  trim_right,     // white space at the end
  single_spaces   // each run of spaces becomes one space; spaces at the ends are dropped
};

// Returns the text after a change.
//
// Pre         text is UTF-8
// Source      https://github.com/huggingface/tokenizers, its normalizers Lowercase, StripAccents, Strip and
//             BertNormalizer; SentencePiece's remove_extra_whitespaces
inline std::string changed(std::string text, text_change change) {
  if (change == text_change::drop_accents) text = in_form(std::move(text), unicode_form::nfd);
  std::string result;
  const auto put = [&](char32_t code) {
    utf8proc_uint8_t bytes[4];
    const auto n = utf8proc_encode_char(static_cast<utf8proc_int32_t>(code), bytes);
    result.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(n));
  };
  const auto is_space = [](char32_t c, utf8proc_category_t category) {
    return (c >= 9 && c <= 13) || c == 0x85 || (category >= UTF8PROC_CATEGORY_ZS && category <= UTF8PROC_CATEGORY_ZP);
  };
  std::size_t shown = 0;  // size of the result up to its last character that is no white space
  for (std::string_view rest = text; !rest.empty();) {
    const utf8_character c = read_utf8(rest);
    const auto code = static_cast<utf8proc_int32_t>(c.code);
    const utf8proc_category_t category = utf8proc_category(code);
    const std::string_view bytes = rest.substr(0, c.bytes);
    const bool space = is_space(c.code, category);
    rest.remove_prefix(c.bytes);
    switch (change) {
      case text_change::lower_case:
        put(static_cast<char32_t>(c.code == 0x130 ? 'i' : utf8proc_tolower(code)));
        if (c.code == 0x130) put(0x307);  // the one letter whose lower case is two characters
        break;
      case text_change::drop_marks:
        if (category < UTF8PROC_CATEGORY_MN || category > UTF8PROC_CATEGORY_ME) result += bytes;
        break;
      case text_change::drop_accents:
        if (category != UTF8PROC_CATEGORY_MN) result += bytes;
        break;
      case text_change::drop_controls:
        if (c.code == '\t' || c.code == '\n' || c.code == '\r' || (space && category != UTF8PROC_CATEGORY_CC)) {
          result += ' ';
        } else if (c.code != 0xFFFD && category != UTF8PROC_CATEGORY_CN && category < UTF8PROC_CATEGORY_CC) {
          result += bytes;
        }
        break;
      case text_change::part_han: {
        const auto within = [&](char32_t low, char32_t high) { return c.code >= low && c.code <= high; };
        // U+2B920 should be U+2B820, but the models were trained with this table.
        const bool is_han = within(0x4E00, 0x9FFF) || within(0x3400, 0x4DBF) || within(0x20000, 0x2A6DF) ||
                            within(0x2A700, 0x2B73F) || within(0x2B740, 0x2B81F) || within(0x2B920, 0x2CEAF) ||
                            within(0xF900, 0xFAFF) || within(0x2F800, 0x2FA1F);
        if (is_han) result += ' ';
        result += bytes;
        if (is_han) result += ' ';
        break;
      }
      case text_change::trim_left:
        if (!space || shown > 0) result += bytes;
        break;
      case text_change::trim_right:
        result += bytes;
        break;
      case text_change::single_spaces:
        if (c.code != ' ' || (!result.empty() && result.back() != ' ')) result += bytes;
        break;
    }
    if (!space) shown = result.size();
  }
  if (change == text_change::trim_right || (change == text_change::single_spaces && !result.empty()))
    result.resize(change == text_change::trim_right ? shown : result.size() - (result.back() == ' ' ? 1 : 0));
  return result;
}

// A table of texts and their replacements, as a SentencePiece model holds it: a trie in a double array, and the
// replacements that its leaves point to, each with a zero byte at its end.
//
// Source      SentencePiece, src/normalizer.cc and third_party/darts_clone
class character_map {
 public:
  // Reads the table from its bytes. The first four are the size of the double array, in bytes.
  //
  // Errors      model_error for bytes that are no such table
  character_map(std::string_view bytes, const std::string& where) {
    std::uint32_t size = 0;
    if (bytes.size() >= sizeof size) std::memcpy(&size, bytes.data(), sizeof size);
    if (size < 4 || size % 4 != 0 || size > bytes.size() - sizeof size)
      raise<model_error>(where, ": \"precompiled_charsmap\" is no table of SentencePiece.");
    units_.resize(size / 4);
    std::memcpy(units_.data(), bytes.data() + sizeof size, size);
    replacements_ = bytes.substr(sizeof size + size);
    replacements_ += '\0';
  }

  // Returns the text after replacements from left to right: at each position, the longest text of the table that stands
  // there is replaced.
  //
  // Pre         text is UTF-8
  std::string operator()(std::string_view text) const {
    std::string result;
    while (!text.empty()) {
      const auto [bytes, replacement] = longest(text);
      const std::size_t taken = bytes > 0 ? bytes : read_utf8(text).bytes;
      result += bytes > 0 ? std::string_view(replacements_.c_str() + replacement) : text.substr(0, taken);
      text.remove_prefix(taken);
    }
    return result;
  }

 private:
  static std::size_t offset_of(std::uint32_t unit) { return std::size_t{unit >> 10U} << ((unit & 0x200U) >> 6U); }

  // The number of bytes of the longest text of the table that `text` begins with, 0 if there is none, and the position
  // of its replacement in replacements_.
  std::pair<std::size_t, std::size_t> longest(std::string_view text) const {
    std::pair<std::size_t, std::size_t> found{0, 0};
    std::size_t node = offset_of(units_.front());
    for (std::size_t i = 0; i < text.size(); ++i) {
      const std::uint32_t byte = static_cast<unsigned char>(text[i]);
      node ^= byte;
      if (byte == 0 || node >= units_.size() || (units_[node] & 0x800000FFU) != byte) break;
      const bool ends = (units_[node] >> 8U & 1U) != 0;
      node ^= offset_of(units_[node]);
      if (!ends) continue;
      if (node >= units_.size()) break;
      const std::size_t replacement = units_[node] & 0x7FFFFFFFU;
      if (replacement < replacements_.size()) found = {i + 1, replacement};
    }
    // A damaged table might end a text within a character.
    const std::size_t end = found.first;
    if (end < text.size() && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80) return {0, 0};
    return found;
  }

  std::vector<std::uint32_t> units_;
  std::string replacements_;
};

// Changes a text before it is cut into words, step by step: Unicode's normal forms and letters' cases, by utf8proc, and
// replacements.
class normaliser {
 public:
  void add(unicode_form form) { steps_.emplace_back(form); }
  void add(text_change change) { steps_.emplace_back(change); }
  void add(character_map map) { steps_.emplace_back(std::move(map)); }
  void add_replacement(std::string from, std::string to) {
    steps_.emplace_back(replacement{std::move(from), std::move(to)});
  }
  void add_replacement(regex from, std::string to) {
    steps_.emplace_back(pattern_replacement{std::move(from), std::move(to)});
  }
  void add_prefix(std::string text) { steps_.emplace_back(prefix{std::move(text)}); }

  // The normalised text.
  //
  // Pre         text is UTF-8
  std::string operator()(std::string_view text) const {
    std::string result(text);
    for (const auto& step : steps_)
      std::visit([&](const auto& s) { apply(s, result); }, step);
    return result;
  }

 private:
  struct replacement {
    std::string from, to;
  };
  struct pattern_replacement {
    regex from;
    std::string to;
  };
  struct prefix {
    std::string text;
  };

  static void apply(unicode_form form, std::string& text) { text = in_form(std::move(text), form); }
  static void apply(text_change change, std::string& text) { text = changed(std::move(text), change); }
  static void apply(const character_map& map, std::string& text) { text = require_utf8(map(text)); }
  static void apply(const replacement& step, std::string& text) { text = replaced(text, step.from, step.to); }
  static void apply(const prefix& step, std::string& text) {
    if (!text.empty()) text.insert(0, step.text);
  }
  static void apply(const pattern_replacement& step, std::string& text) {
    std::string result;
    std::size_t done = 0;
    step.from.each_match(text, [&](std::size_t begin, std::size_t end) {
      result.append(text, done, begin - done).append(step.to);
      done = end;
    });
    text = result.append(text, done);
  }

  // Returns the text; refuses one that is not UTF-8, because a damaged table may have such replacements.
  static std::string require_utf8(std::string text) {
    for (std::string_view rest = text; !rest.empty();) {
      const utf8_character c = read_utf8(rest);
      if (c.what != utf8_character::state::valid)
        raise<input_error>("a replacement of the tokenizer's table of characters is not UTF-8.");
      rest.remove_prefix(c.bytes);
    }
    return text;
  }

  std::vector<std::variant<unicode_form, text_change, character_map, replacement, pattern_replacement, prefix>> steps_;
};

}  // namespace espalier::detail
