// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <vector>

#include "espalier/core/option.hpp"
#include "espalier/core/util/nearest_name.hpp"
#include "model_paths.hpp"
#include "usage_error.hpp"

namespace models {

//! The flag of an option: --name, or --prefix.name.
inline std::string flag_name(std::string_view prefix, std::string_view name) {
  std::string flag = fmt::format("--{}{}{}", prefix, prefix.empty() ? "" : ".", name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

//! The shortest text that reads back as the same number: for a float 0.03, not 0.029999999.
template <class ValueT>
std::string in_words(ValueT value) {
  if constexpr (std::is_integral_v<ValueT>) return std::to_string(value);
  return fmt::format("{}", static_cast<float>(value));
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
  throw usage_error(fmt::format("{} must be {}, but is \"{}\".", flag, allowed, given));
}

//! Parts of --help: the default of a flag; a name with its meaning.
inline std::string bracketed(const std::string& value) {
  return fmt::format(" [{}]", value);
}
inline std::string entry(std::string_view name, std::string_view summary) {
  return fmt::format("\n  {:<18} {}", name, summary);
}

//! Reads the text of a flag into an option's value.
template <class OptionT, class ValueT>
void read_option(const std::string& flag, const OptionT& option, const std::string& text, ValueT& value) {
  if constexpr (std::is_same_v<ValueT, bool>) {
    if (text != "on" && text != "off") refuse(flag, "on or off", text);
    value = text == "on";
  } else if constexpr (std::is_enum_v<ValueT>) {
    std::string names;
    for (const auto& known : espalier::known_values<ValueT>) {
      if (known.name == text) return void(value = known.value);
      names += (names.empty() ? "" : ", ") + std::string(known.name);
    }
    refuse(flag, fmt::format("one of {}", names), text);
  } else if (!read_number(text, option.low, option.high(), value)) {
    refuse(flag, (std::is_integral_v<ValueT> ? "a whole number, " : "a number, ") + range_in_words(option), text);
  }
}

//! The description of an option for --help: its meaning, its range or its values, its default.
template <class OptionT, class ValueT>
std::string option_help(const OptionT& option, const ValueT& value) {
  std::string help(option.help);
  if constexpr (std::is_same_v<ValueT, bool>) {
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
  return std::is_enum_v<ValueT> ? "NAME" : "N";
}

//! Adds flags to a CLI::App; every value is checked as it is read.
class flags {
 public:
  explicit flags(CLI::App& app) : app_(app) {}

  template <class OptionT, class ValueT>
  void add_option(const std::string& group, std::string_view prefix, const OptionT& option, ValueT& value) {
    const std::string flag = flag_name(prefix, option.name);
    add(group, flag, type_in_words<ValueT>(), option_help(option, value),
        [=, &value](const std::string& text) { read_option(flag, option, text, value); });
  }

  //! Adds one flag for each described field of an options struct.
  template <class OptionsT>
  void add_options(const std::string& group, std::string_view prefix, OptionsT& options) {
    espalier::for_each_option(options,
                              [&](const auto& option, auto& value) { add_option(group, prefix, option, value); });
  }

  CLI::Option* add(const std::string& group, const std::string& flag, const std::string& type, const std::string& help,
                   const std::function<void(const std::string& text)>& read) {
    CLI::Option* option = app_.add_option(
        flag,
        [read](const CLI::results_t& texts) {
          for (const std::string& text : texts)
            read(text);
          return true;
        },
        help);
    return option->group(group)
        ->type_name(type)
        ->type_size(1)
        ->expected(1)
        ->allow_extra_args(false)
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }

 private:
  CLI::App& app_;
};

//! The error of CLI11 as a sentence. CLI11 does not name a flag that --help does not list; that flag is the last
//! argument.
inline std::string sentence(const CLI::ParseError& error, const std::string& last) {
  const std::string what = error.what();
  if (what.compare(0, 2, ": ") == 0) return last + " needs a value.";
  const std::size_t colon = what.find(": ");
  if (colon != std::string::npos && what.compare(0, 2, "--") == 0) return what.substr(0, colon) + " needs a value.";
  return what + (what.empty() || what.back() == '.' ? "" : ".");
}

//! The error for an argument that the program does not know; it names the flag that is nearest to it.
inline usage_error no_such_argument(const CLI::App& app) {
  const std::string given = app.remaining().front();
  std::vector<std::string> flags;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      flags.push_back("--" + name);
  }
  const std::string_view nearest = espalier::nearest_name(given.substr(0, given.find('=')), flags);
  return usage_error(fmt::format("There is no such argument: {}.", given) +
                     (nearest.empty() ? "" : fmt::format(" The nearest one is {}.", nearest)));
}

//! Adds the flags for the paths of models, except that of a block draft.
inline void add_model_paths(flags& f, const char* group, model_paths& paths) {
  const auto add = [&](const std::string& flag, std::string& path, const std::string& about) {
    f.add(group, flag, "PATH", about, [&path](const std::string& text) { path = text; });
  };
  add("--model", paths.model,
      "a model, or a folder with target, draft, block and a tokenizer" + bracketed(paths.model));
  add("--draft", paths.draft, "a smaller model that drafts [draft in the folder of --model]");
}

}  // namespace models
