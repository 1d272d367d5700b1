// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "espalier/core/number_list.hpp"
#include "espalier/core/option.hpp"
#include "option_value.hpp"
#include "usage_error.hpp"

namespace models {

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

//! Reads the text of a flag into an option's value.
template <class OptionT, class ValueT>
void read_option(const std::string& flag, const OptionT& option, const std::string& text, ValueT& value) {
  const std::string allowed = read_value(option, text, value);
  if (!allowed.empty()) refuse(flag, allowed, text);
}

//! The description of an option for --help: its meaning, its range or its values, its default.
template <class OptionT, class ValueT>
std::string option_help(const OptionT& option, const ValueT& value) {
  std::string help(option.help);
  if constexpr (std::is_same_v<ValueT, espalier::number_list>) {
    std::string numbers;
    for (const double number : value)
      numbers += (numbers.empty() ? "" : ", ") + espalier::detail::in_words(number);
    return help + bracketed(numbers);
  } else if constexpr (std::is_same_v<ValueT, bool>) {
    return help + bracketed(value ? "on" : "off");
  } else if constexpr (std::is_enum_v<ValueT>) {
    help += bracketed(std::string(espalier::name_of(value)));
    for (const auto& known : espalier::known_values<ValueT>)
      help += entry(known.name, known.summary);
    return help;
  } else {
    return help + ", " + range_in_words(option) + bracketed(espalier::detail::in_words(value));
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
      shown = std::strtod(espalier::detail::in_words(value).c_str(), nullptr);  // 0.8 and not 0.800000012
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
