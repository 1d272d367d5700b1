// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "espalier/core/option.hpp"
#include "espalier/core/util/nearest_name.hpp"
#include "model_paths.hpp"
#include "option_text.hpp"

namespace models {

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
    add_each(group, prefix, text_options(options));
  }

  //! Adds one flag for each of these options.
  void add_each(const std::string& group, std::string_view prefix, const std::vector<text_option>& options) {
    for (const text_option& option : options) {
      const std::string flag = flag_name(prefix, option.name);
      add(group, flag, option.type, option.help,
          [flag, read = option.read](const std::string& text) { read(flag, text); });
    }
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
  add("--draft", paths.draft,
      "what drafts: a smaller model, or a head or a block draft made for this one [draft in the folder of --model]");
  add("--head-tokens", paths.head_tokens,
      "a file of the tokens that a smaller model drafts, or all [head_tokens.json in its folder, or else all]");
  add("--map", paths.map,
      "a file that keeps the map between two tokenizers; it is made if it does not exist [made anew each time]");
  f.add_option(group, "", espalier::option_of(&model_paths::translation), paths.translation);
}

}  // namespace models
