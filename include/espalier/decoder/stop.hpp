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

//! When a text ends, besides a full context.
struct stop_conditions {
  std::int32_t max_tokens =
      (std::numeric_limits<std::int32_t>::max)();  //!< new tokens at most; 0 reads the prompt alone
#if ESPALIER_HOSTED
  std::vector<token_id> tokens{};      //!< end after any of these
  std::vector<std::string> strings{};  //!< end after the token that completes any of these in the new text, as bytes
  bool show_string = true;             //!< whether round_record::shown ends with the stop string or before it
#else
  std::span<const token_id> tokens{};  //!< end after any of these, which stay where they are while the text is written
#endif

  static constexpr void describe(auto see) {
    see(option{"max_tokens", &stop_conditions::max_tokens, "tokens to write at most", 0});
  }
};

#if ESPALIER_HOSTED

//! Finds stop strings in a text that arrives in pieces, also where one spans several pieces, and holds back what may be
//! the beginning of one. Pieces are tried first and kept or taken back together, as a round is.
//!
//! Complexity  push: O(length of the stop strings and of the pieces not kept yet); no allocation after construction
//!             while these have up to 256 bytes
class stop_string_search {
 public:
  stop_string_search() = default;
  explicit stop_string_search(const std::vector<std::string>& strings, bool show_string = true) {
    begin(strings, show_string);
  }

  void begin(const stop_conditions& stop) { begin(stop.strings, stop.show_string); }
  //! Another text, and what to look for in it. Memory is used again.
  void begin(const std::vector<std::string>& strings, bool show_string) {
    strings_ = strings;
    std::erase(strings_, std::string());
    show_string_ = show_string;
    text_.clear(), first_.clear(), shown_.clear();
    kept_ = 0;
    reserve();
  }

  //! Makes room, as a copy needs.
  void reserve() {
    std::size_t longest = 0;
    for (const std::string& s : strings_)
      longest = (std::max)(longest, s.size());
    text_.reserve(longest + 256);
    shown_.reserve(longest + first_.size() + 256);
  }

  //! Whether there is none to look for.
  bool empty() const { return strings_.empty(); }

  //! Appends a piece; true when a stop string ends in it.
  bool push(std::string_view piece) {
    text_.append(piece);
    return std::any_of(strings_.begin(), strings_.end(),
                       [&](const std::string& s) { return text_.find(s) != std::string::npos; });
  }

  //! Keeps what was pushed: it cannot be taken back any more. Where the text ends here, nothing is held back; what
  //! follows the stop string that was complete first is never shown.
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

  //! Bytes that keep() let go of: no stop string can begin in them any more. Valid until the next keep().
  std::string_view shown() const { return shown_; }

  //! Bytes not shown yet: those to be shown first, and what may turn out to be the beginning of a stop string.
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
  // The longest end of the text that a stop string begins with.
  std::size_t n_held_back() const {
    std::size_t n = 0;
    for (const std::string& s : strings_) {
      for (std::size_t k = (std::min)(s.size() - 1, text_.size()); k > n; --k) {
        if (text_.compare(text_.size() - k, k, s, 0, k) == 0) n = k;
      }
    }
    return n;
  }

  // Position at which the text ends for its reader: where the stop string begins that ends first, or the longest of
  // several that end there.
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
  std::string text_;   // what is held back, then what is not kept yet
  std::string first_;  // what is shown before it
  std::string shown_;
  std::size_t kept_ = 0;  // bytes that are held back
};

#else

//! There are no stop strings, and no bytes are kept.
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
