// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace serve {

namespace detail {

inline std::size_t past_space(std::string_view text, std::size_t i) {
  return (std::min)(text.find_first_not_of(" \t\n\r", i), text.size());
}

// The position behind the JSON value that begins at i.
inline std::size_t past_value(std::string_view text, std::size_t i) {
  int depth = 0;
  do {
    const char c = text[i];
    if (c == '"') {
      for (++i; text[i] != '"'; ++i)
        if (text[i] == '\\') ++i;
      ++i;
    } else if (c == '{' || c == '[') {
      ++depth, ++i;
    } else if (c == '}' || c == ']') {
      --depth, ++i;
    } else if (depth > 0) {
      ++i;
    } else {
      return (std::min)(text.find_first_of(" \t\n\r,}]", i), text.size());
    }
  } while (depth > 0);
  return i;
}

}  // namespace detail

//! The text of an object's member, byte for byte: numbers keep their digits, members their order. Of several members
//! with this name it is the last, as a parser of the object would take it. Empty if there is none.
//!
//! Pre         `object` is valid JSON
inline std::string_view member_text(std::string_view object, std::string_view name) {
  std::string_view found;
  std::size_t i = detail::past_space(object, 0);
  if (i == object.size() || object[i] != '{') return found;
  i = detail::past_space(object, i + 1);
  while (object[i] == '"') {
    const std::size_t key_end = detail::past_value(object, i);
    const auto key = nlohmann::json::parse(object.substr(i, key_end - i));  // names have escapes, too
    const std::size_t begin = detail::past_space(object, detail::past_space(object, key_end) + 1);
    const std::size_t end = detail::past_value(object, begin);
    if (key.get_ref<const std::string&>() == name) found = object.substr(begin, end - begin);
    i = detail::past_space(object, end);
    if (object[i] == ',') i = detail::past_space(object, i + 1);
  }
  return found;
}

}  // namespace serve
