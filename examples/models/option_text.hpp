// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "espalier/core/number_list.hpp"
#include "espalier/core/option.hpp"
#include "usage_error.hpp"

namespace models {

//! The flag of an option: --name, or --prefix.name.
inline std::string flag_name(std::string_view prefix, std::string_view name) {
  std::string flag = std::string("--").append(prefix).append(prefix.empty() ? "" : ".").append(name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

//! The shortest text that reads back as the same number: for a float 0.03, not 0.029999999.
template <class ValueT>
std::string in_words(ValueT value) {
  if constexpr (std::is_integral_v<ValueT>) return std::to_string(value);
  const auto number = static_cast<float>(value);
  char text[32] = {};
  for (int digits = 6; digits <= 9; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, static_cast<double>(number));
    if (std::strtof(text, nullptr) == number) break;
  }
  return text;
}

template <class OptionT>
std::string range_in_words(const OptionT& option) {
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

[[noreturn]] inline void refuse(const std::string& flag, const std::string& allowed, const std::string& given) {
  throw usage_error(flag + " must be " + allowed + ", but is \"" + given + "\".");
}

//! Parts of --help: the default of a flag; a name with its meaning.
inline std::string bracketed(const std::string& value) {
  return " [" + value + "]";
}
inline std::string entry(std::string_view name, std::string_view summary) {
  const std::size_t width = 18;
  return std::string("\n  ").append(name).append(width - (std::min)(width, name.size()) + 1, ' ').append(summary);
}

//! Reads numbers with commas between them. Their range is checked by the part that has the option.
inline espalier::number_list read_list(const std::string& flag, const std::string& text) {
  constexpr double most = (std::numeric_limits<double>::max)();
  std::vector<double> numbers;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = (std::min)(text.find(',', begin), text.size());
    if (numbers.size() == espalier::number_list::most ||
        !read_number(text.substr(begin, end - begin), -most, most, numbers.emplace_back()))
      refuse(flag, "at most " + std::to_string(espalier::number_list::most) + " numbers with commas between them",
             text);
    begin = end + 1;
  }
  return numbers;
}

//! Reads the text of a flag into an option's value.
template <class OptionT, class ValueT>
void read_option(const std::string& flag, const OptionT& option, const std::string& text, ValueT& value) {
  if constexpr (std::is_same_v<ValueT, espalier::number_list>) {
    value = read_list(flag, text);
  } else if constexpr (std::is_same_v<ValueT, bool>) {
    if (text != "on" && text != "off") refuse(flag, "on or off", text);
    value = text == "on";
  } else if constexpr (std::is_enum_v<ValueT>) {
    std::string names;
    for (const auto& known : espalier::known_values<ValueT>) {
      if (known.name == text) return void(value = known.value);
      names += (names.empty() ? "" : ", ") + std::string(known.name);
    }
    refuse(flag, "one of " + names, text);
  } else if (!read_number(text, option.low, option.high(), value)) {
    refuse(flag, (std::is_integral_v<ValueT> ? "a whole number, " : "a number, ") + range_in_words(option), text);
  }
}

//! The description of an option for --help: its meaning, its range or its values, its default.
template <class OptionT, class ValueT>
std::string option_help(const OptionT& option, const ValueT& value) {
  std::string help(option.help);
  if constexpr (std::is_same_v<ValueT, espalier::number_list>) {
    std::string numbers;
    for (const double number : value)
      numbers += (numbers.empty() ? "" : ", ") + in_words(number);
    return help + bracketed(numbers);
  } else if constexpr (std::is_same_v<ValueT, bool>) {
    return help + bracketed(value ? "on" : "off");
  } else if constexpr (std::is_enum_v<ValueT>) {
    help += bracketed(std::string(espalier::name_of(value)));
    for (const auto& known : espalier::known_values<ValueT>)
      help += entry(known.name, known.summary);
    return help;
  } else {
    return help + ", " + range_in_words(option) + bracketed(in_words(value));
  }
}

template <class ValueT>
const char* type_in_words() {
  if (std::is_same_v<ValueT, bool>) return "on|off";
  if (std::is_same_v<ValueT, espalier::number_list>) return "N,...";
  return std::is_enum_v<ValueT> ? "NAME" : "N";
}

//! An option of a part, without the types of the option and the part: what a flag, --help and JSON are made from.
struct text_option {
  using value_type = std::variant<bool, std::int64_t, double, std::string, std::vector<double>>;

  std::string_view name;
  std::string help;  //!< see option_help
  const char* type;  //!< of its value, in --help
  std::function<void(const std::string& flag, const std::string& text)> read;
  value_type value;  //!< the value when this was made
};

//! The described fields of an options struct, which must outlive them.
template <class OptionsT>
std::vector<text_option> text_options(OptionsT& options) {
  std::vector<text_option> all;
  espalier::for_each_option(options, [&]<class ValueT>(const auto& option, ValueT& value) {
    text_option::value_type shown;
    if constexpr (std::is_enum_v<ValueT>) {
      shown = std::string(espalier::name_of(value));
    } else if constexpr (std::is_same_v<ValueT, espalier::number_list>) {
      shown = std::vector<double>(value.begin(), value.end());
    } else if constexpr (std::is_same_v<ValueT, float>) {
      shown = std::strtod(in_words(value).c_str(), nullptr);  // 0.8 and not 0.800000012
    } else if constexpr (std::is_integral_v<ValueT> && !std::is_same_v<ValueT, bool>) {
      shown = static_cast<std::int64_t>(value);
    } else {
      shown = value;
    }
    all.push_back(
        {option.name, option_help(option, value), type_in_words<ValueT>(),
         [option, &value](const std::string& flag, const std::string& text) { read_option(flag, option, text, value); },
         std::move(shown)});
  });
  return all;
}

}  // namespace models
