// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "../models/option_value.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/number_list.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/util/nearest_name.hpp"

namespace parts {

namespace detail {

template <class ValueT>
std::string value_in_words(const ValueT& value) {
  if constexpr (std::is_same_v<ValueT, bool>)
    return value ? "on" : "off";
  else if constexpr (std::is_enum_v<ValueT>)
    return std::string(espalier::name_of(value));
  else if constexpr (std::is_same_v<ValueT, espalier::number_list>) {
    std::string numbers;
    for (const double number : value)
      numbers.append(numbers.empty() ? "" : ",").append(espalier::detail::in_words(number));
    return numbers;
  } else
    return espalier::detail::in_words(value);
}

}  // namespace detail

//! Reads options from words like "budget=8 history=off": see make_policy().
//!
//! Errors      option_error that names the word and the values that are allowed
template <class OptionsT>
void read_options(std::string_view words, OptionsT& options) {
  while (true) {
    words.remove_prefix((std::min)(words.find_first_not_of(' '), words.size()));
    if (words.empty()) return;
    const std::string_view word = words.substr(0, words.find(' '));
    words.remove_prefix(word.size());
    const std::size_t equals = word.find('=');
    if (equals == std::string_view::npos)
      espalier::raise<espalier::option_error>("options are written name=value, but one is ", word, ".");
    const std::string_view name = word.substr(0, equals);
    const std::string text(word.substr(equals + 1));
    bool is_known = false;
    std::vector<std::string_view> names;
    espalier::for_each_option(options, [&](const auto& one, auto& value) {
      names.push_back(one.name);
      if (one.name != name) return;
      is_known = true;
      const std::string allowed = models::read_value(one, text, value);
      if (!allowed.empty())
        espalier::raise<espalier::option_error>("option ", name, " must be ", allowed, ", but is ", text, ".");
    });
    if (is_known) continue;
    if (names.empty()) espalier::raise<espalier::option_error>("this part has no options, but is given ", word, ".");
    const std::string_view nearest = espalier::nearest_name(name, names);
    std::string known;
    for (const std::string_view n : names)
      known.append(known.empty() ? "" : ", ").append(n);
    espalier::raise<espalier::option_error>("there is no option ", name,
                                            nearest.empty() ? "" : "; the nearest name is ", nearest,
                                            "; the options are ", known, ".");
  }
}

//! The options of a part in words, one a line.
template <class OptionsT>
std::string options_in_words(const OptionsT& options) {
  std::string all;
  OptionsT shown = options;
  espalier::for_each_option(shown, [&]<class ValueT>(const auto& one, const ValueT& value) {
    all.append(one.name).append("=").append(detail::value_in_words(value)).append("  ").append(one.help);
    if constexpr (std::is_arithmetic_v<ValueT> && !std::is_same_v<ValueT, bool>) {
      all.append(", ").append(detail::value_in_words(one.low)).append(" to ");
      all.append(one.high_name().empty() ? detail::value_in_words(one.high()) : std::string(one.high_name()));
    }
    all.append("\n");
  });
  return all;
}

//! Calls f(part) with the registry's part of this name.
//!
//! Errors      option_error that names the nearest part
template <class PartsT, class FunctionT>
void with_part_of(const PartsT& all, const char* kind, std::string_view name, const FunctionT& f) {
  bool is_known = false;
  std::vector<std::string_view> names;
  boost::hana::for_each(all, [&](const auto& part) {
    names.push_back(part.name);
    if (part.name != name) return;
    is_known = true;
    f(part);
  });
  if (is_known) return;
  const std::string_view nearest = espalier::nearest_name(name, names);
  espalier::raise<espalier::option_error>("there is no ", kind, " ", name,
                                          nearest.empty() ? "" : "; the nearest name is ", nearest, ".");
}

}  // namespace parts
