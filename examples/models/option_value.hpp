// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/number_list.hpp"
#include "espalier/core/option.hpp"

namespace models {

//! The flag of an option: --name, or --prefix.name.
inline std::string flag_name(std::string_view prefix, std::string_view name) {
  std::string flag = std::string("--").append(prefix).append(prefix.empty() ? "" : ".").append(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

template <class OptionT>
std::string range_in_words(const OptionT& option) {
  using espalier::detail::in_words;
  if (option.high() >= (1 << 30)) return in_words(option.low) + " and more";
  const std::string_view high = option.high_name();
  return in_words(option.low) + " to " + (high.empty() ? in_words(option.high()) : flag_name("", high).substr(2));
}

//! Reads the whole text as a number in [low, high]. False for anything else, NaN included.
template <class ValueT>
bool read_number(const std::string& text, ValueT low, ValueT high, ValueT& value) {
  const char* end = text.data() + text.size();
  if constexpr (std::is_integral_v<ValueT>) {
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stopped != end) return false;
  } else {
    char* stopped = nullptr;
    value = static_cast<ValueT>(std::strtod(text.c_str(), &stopped));
    if (text.empty() || stopped != end) return false;
  }
  return value >= low && value <= high;
}

//! Reads the text of an option into its value, which is unspecified if this fails. Returns nothing, or else the values
//! that the option may have, in words. The range of the numbers in a list is checked by the part that has the option.
template <class OptionT, class ValueT>
std::string read_value(const OptionT& option, const std::string& text, ValueT& value) {
  if constexpr (std::is_same_v<ValueT, espalier::number_list>) {
    constexpr double most = (std::numeric_limits<double>::max)();
    std::vector<double> numbers;
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = (std::min)(text.find(',', begin), text.size());
      if (numbers.size() == espalier::number_list::most ||
          !read_number(text.substr(begin, end - begin), -most, most, numbers.emplace_back()))
        return "at most " + std::to_string(espalier::number_list::most) + " numbers with commas between them";
      begin = end + 1;
    }
    value = numbers;
  } else if constexpr (std::is_same_v<ValueT, bool>) {
    if (text != "on" && text != "off") return "on or off";
    value = text == "on";
  } else if constexpr (std::is_enum_v<ValueT>) {
    std::string names;
    for (const auto& known : espalier::known_values<ValueT>) {
      if (known.name == text) return value = known.value, "";
      names += (names.empty() ? "" : ", ") + std::string(known.name);
    }
    return "one of " + names;
  } else if (!read_number(text, option.low, option.high(), value)) {
    return (std::is_integral_v<ValueT> ? "a whole number, " : "a number, ") + range_in_words(option);
  }
  return "";
}

}  // namespace models
