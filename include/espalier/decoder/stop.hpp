// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/config.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! Conditions that end a text. It also ends when its context is full, or when its processor allows no token.
struct stop_conditions {
  std::int32_t max_tokens =
      (std::numeric_limits<std::int32_t>::max)();  //!< new tokens at most; with 0 the prompt is read, and nothing is
                                                   //!< written
#if ESPALIER_HOSTED
  std::vector<token_id> tokens{};      //!< end after any of these
  std::vector<std::string> strings{};  //!< end after the token that completes any of these in the new text, as bytes
  bool show_string = true;             //!< whether round_record::shown ends with the stop string or before it
#else
  std::span<const token_id> tokens{};  //!< end after any of these; they must stay in memory while the text is written
#endif

  // A text without a heap has a span of tokens, which does not compare.
#if ESPALIER_HOSTED
  bool operator==(const stop_conditions&) const = default;
#endif

  static constexpr void describe(auto see) {
    see(option{"max_tokens", &stop_conditions::max_tokens, "tokens to write at most", 0});
  }
};

#if ESPALIER_HOSTED

//! Search for stop strings in a text that arrives in pieces. A stop string may span several pieces: bytes that may be
//! its beginning are held back. push() only tries pieces. When the round is committed, keep() makes the pieces part of
//! the text; when the round is given up, take_back() drops them.
//!
//! Complexity  push: a search for each stop string in the bytes that are held back or not kept yet; no allocation after
//!             begin() while the pieces that are pushed before a keep() have up to 256 bytes together
class stop_string_search {
 public:
  stop_string_search() = default;
  explicit stop_string_search(const std::vector<std::string>& strings, bool show_string = true) {
    begin(strings, show_string);
  }

  void begin(const stop_conditions& stop) { begin(stop.strings, stop.show_string); }
  //! Begins another text, with the strings to look for in it; empty ones are ignored. Memory is used again.
  void begin(const std::vector<std::string>& strings, bool show_string) {
    strings_ = strings;
    std::erase(strings_, std::string());
    show_string_ = show_string;
    text_.clear(), first_.clear(), shown_.clear();
    kept_ = 0;
    reserve();
  }

  //! Takes the memory that later calls need. To be called for a copy of a search, too.
  void reserve() {
    std::size_t longest = 0;
    for (const std::string& s : strings_)
      longest = (std::max)(longest, s.size());
    text_.reserve(longest + 256);
    shown_.reserve(longest + first_.size() + 256);
  }

  //! Whether there is no string to look for.
  bool empty() const { return strings_.empty(); }

  //! Appends a piece. Returns true if a stop string is among the bytes that are held back or not kept yet.
  bool push(std::string_view piece) {
    text_.append(piece);
    return std::any_of(strings_.begin(), strings_.end(),
                       [&](const std::string& s) { return text_.find(s) != std::string::npos; });
  }

  //! Keeps what was pushed: it cannot be taken back any more. If the text ends here (`ends`), nothing is held back;
  //! bytes after the stop string that was complete first are never shown.
  void keep(bool ends = false) {
    const std::size_t n = ends ? end_of_text() : text_.size() - n_held_back();
    shown_ = first_;
    first_.clear();
    shown_.append(text_, 0, n);
    text_.erase(0, ends ? text_.size() : n);
    kept_ = text_.size();
  }

  //! Takes back what was pushed since keep().
  void take_back() { text_.resize(kept_); }

  //! Bytes that the last keep() released: no stop string can begin in them any more, or the text has ended. Valid until
  //! the next keep().
  std::string_view shown() const { return shown_; }

  //! Bytes that are not shown yet: those of show_first(), then those that may turn out to be the beginning of a stop
  //! string.
  std::string held_back() const { return first_ + text_.substr(0, kept_); }

  //! The next shown() begins with these bytes, in which no stop string is looked for.
  void show_first(std::string_view bytes) { first_ = bytes; }

  //! Saves or loads the bytes that are held back.
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    take_back();
    shown_.clear();
    archive(first_, text_);
    kept_ = text_.size();
    archive.require(n_held_back() == kept_);
  }

 private:
  // Length of the longest end of text_ with which a stop string begins.
  std::size_t n_held_back() const {
    std::size_t n = 0;
    for (const std::string& s : strings_) {
      for (std::size_t k = (std::min)(s.size() - 1, text_.size()); k > n; --k) {
        if (text_.compare(text_.size() - k, k, s, 0, k) == 0) n = k;
      }
    }
    return n;
  }

  // Position in text_ at which the text ends for its reader: the end of the stop string that is complete first, or its
  // beginning if it is not to be shown. If several are complete at once, the longest of them counts.
  std::size_t end_of_text() const {
    std::size_t begin = text_.size(), end = begin + 1;
    for (const std::string& s : strings_) {
      const std::size_t at = text_.find(s);
      if (at == std::string::npos || at + s.size() > end || (at + s.size() == end && at > begin)) continue;
      begin = at;
      end = at + s.size();
    }
    return show_string_ ? (std::min)(end, text_.size()) : begin;
  }

  std::vector<std::string> strings_;
  bool show_string_ = true;
  std::string text_;   // the bytes that are held back, then those that are not kept yet
  std::string first_;  // the bytes of show_first(), to be shown before those of text_
  std::string shown_;
  std::size_t kept_ = 0;  // bytes that are held back
};

#else

//! Without a heap there are no stop strings, and no bytes are kept.
class stop_string_search {
 public:
  void begin(const stop_conditions&) {}
  void reserve() {}
  bool empty() const { return true; }
  bool push(std::string_view) { return false; }
  void keep(bool = false) {}
  void take_back() {}
  std::string_view shown() const { return {}; }
  std::string_view held_back() const { return {}; }
  void show_first(std::string_view) {}
};

#endif

}  // namespace espalier
