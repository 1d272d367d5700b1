// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"

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

// The forms of Unicode Standard Annex 15.
enum class unicode_form { nfc, nfd, nfkc, nfkd };

// Changes a text before it is cut into words: Unicode's normal forms, by utf8proc, and plain replacements, in order.
class normaliser {
 public:
  void add_form(unicode_form form) { steps_.push_back({step::kind::form, form, {}, {}}); }
  void add_replacement(std::string from, std::string to) {
    steps_.push_back({step::kind::replacement, {}, std::move(from), std::move(to)});
  }
  void add_prefix(std::string text) { steps_.push_back({step::kind::prefix, {}, {}, std::move(text)}); }

  // The normalised text.
  //
  // Pre         text is UTF-8
  std::string operator()(std::string_view text) const {
    std::string result(text);
    for (const step& s : steps_) {
      switch (s.what) {
        case step::kind::form:
          result = in_form(std::move(result), s.form);
          break;
        case step::kind::replacement:
          result = replaced(result, s.from, s.to);
          break;
        case step::kind::prefix:
          if (!result.empty()) result.insert(0, s.to);
          break;
      }
    }
    return result;
  }

 private:
  struct step {
    enum class kind { form, replacement, prefix };
    kind what;
    unicode_form form;
    std::string from, to;
  };

  static std::string in_form(std::string text, unicode_form form) {
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

  std::vector<step> steps_;
};

}  // namespace espalier::detail
