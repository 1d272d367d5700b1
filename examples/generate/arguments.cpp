// SPDX-License-Identifier: BSL-1.0
#include "arguments.hpp"

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <charconv>
#include <cstdlib>
#include <memory>
#include <type_traits>

#include "help_format.hpp"
#include "models_path.hpp"

namespace generate {

namespace {

namespace hana = boost::hana;

std::string flag_name(std::string_view prefix, std::string_view name) {
  std::string flag = fmt::format("--{}{}{}", prefix, prefix.empty() ? "" : ".", name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// The shortest text that reads back as the same number: 0.03 of a float, and not 0.029999999.
template <class ValueT>
std::string in_words(double value) {
  if constexpr (std::is_integral_v<ValueT>) return std::to_string(static_cast<long long>(value));
  return fmt::format("{}", static_cast<float>(value));
}

template <class ValueT>
std::string range_in_words(double low, double high) {
  if (high >= (1 << 30)) return fmt::format("{} and more", in_words<ValueT>(low));
  return fmt::format("{} to {}", in_words<ValueT>(low), in_words<ValueT>(high));
}

// Reads all of the text as a number in [low, high]; anything else, NaN too, is refused.
template <class ValueT>
bool read_number(const std::string& text, double low, double high, ValueT& value) {
  const char* end = text.data() + text.size();
  if constexpr (std::is_integral_v<ValueT>) {
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || stopped != end) return false;
  } else {
    char* stopped = nullptr;
    value = static_cast<ValueT>(std::strtod(text.c_str(), &stopped));
    if (text.empty() || stopped != end) return false;
  }
  return static_cast<double>(value) >= low && static_cast<double>(value) <= high;
}

[[noreturn]] void refuse(const std::string& flag, const std::string& allowed, const std::string& given) {
  throw usage_error(fmt::format("{} must be {}, but is \"{}\".", flag, allowed, given));
}

// In --help: the default of a flag, and a name with what it stands for.
std::string bracketed(const std::string& value) {
  return fmt::format(" [{}]", value);
}
std::string entry(std::string_view name, std::string_view summary) {
  return fmt::format("\n  {:<14} {}", name, summary);
}

// Adds flags to a CLI::App; every value is checked as it is read.
class flags {
 public:
  explicit flags(CLI::App& app) : app_(app) {}

  template <class ValueT>
  void add_number(const std::string& group, const std::string& flag, ValueT& value, double low, double high,
                  const std::string& help) {
    const std::string about = help + ", " + range_in_words<ValueT>(low, high);
    add(group, flag, "N", about + bracketed(in_words<ValueT>(static_cast<double>(value))),
        [=, &value](const std::string& text) {
          if (read_number(text, low, high, value)) return;
          refuse(flag,
                 (std::is_integral_v<ValueT> ? "a whole number, " : "a number, ") + range_in_words<ValueT>(low, high),
                 text);
        });
  }

  void add_truth(const std::string& group, const std::string& flag, bool& value, const std::string& help) {
    add(group, flag, "on|off", help + bracketed(value ? "on" : "off"), [=, &value](const std::string& text) {
      if (text != "on" && text != "off") refuse(flag, "on or off", text);
      value = text == "on";
    });
  }

  template <class EnumT>
  void add_choice(const std::string& group, const std::string& flag, EnumT& value, const std::string& help) {
    std::string names;
    std::string about = help + bracketed(std::string(espalier::name_of(value)));
    for (const auto& known : espalier::known_values<EnumT>) {
      names += (names.empty() ? "" : ", ") + std::string(known.name);
      about += entry(known.name, known.summary);
    }
    add(group, flag, "NAME", about, [=, &value](const std::string& text) {
      for (const auto& known : espalier::known_values<EnumT>) {
        if (known.name == text) return void(value = known.value);
      }
      refuse(flag, fmt::format("one of {}", names), text);
    });
  }

  // One flag for each described field of an options struct.
  template <class OptionsT>
  void add_options(const std::string& group, std::string_view prefix, OptionsT& options) {
    espalier::for_each_option(options, [&]<class OptionT, class ValueT>(const OptionT& option, ValueT& value) {
      const std::string flag = flag_name(prefix, option.name);
      if constexpr (std::is_same_v<ValueT, bool>) {
        add_truth(group, flag, value, std::string(option.help));
      } else if constexpr (std::is_enum_v<ValueT>) {
        add_choice(group, flag, value, std::string(option.help));
      } else {
        add_number(group, flag, value, option.low, option.high, std::string(option.help));
      }
    });
  }

  template <class ReadT>
  CLI::Option* add(const std::string& group, const std::string& flag, const std::string& type, const std::string& help,
                   ReadT read) {
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

void add_text(CLI::App& app, arguments& result) {
  constexpr auto group = "Text";
  flags f(app);
  f.add(group, "--prompt", "TEXT", "text to go on from; may be given several times [one of the model folder's]",
        [&](const std::string& text) { result.prompts.push_back(text); });
  f.add(group, "--prompts", "FILE", "a file of them, one a line in JSON: a string, or an object with text or tokens",
        [&](const std::string& text) { result.prompts_file = text; });
  f.add(group, "--models", "DIR", "folder with target, draft and tokenizer.model" + bracketed(result.models),
        [&](const std::string& text) { result.models = text; });
  f.add_number(group, "--max-tokens", result.max_tokens, 1, 1 << 30, "tokens to write at most");
  f.add(group, "--stop", "TEXT", "stop after this text; may be given several times", [&](const std::string& text) {
    if (text.empty()) throw usage_error("--stop must not be empty.");
    result.stop.push_back(text);
  });
}

void add_method(CLI::App& app, arguments& result) {
  constexpr auto group = "Method";
  flags f(app);
  std::string names;
  std::string help = "how to draft; with --compare a list with commas [dynatree; all to compare]";
  hana::for_each(espalier::tree_policies, [&](const auto& part) {
    names += (names.empty() ? "" : ", ") + std::string(part.name);
    help += entry(part.name, part.summary);
  });
  f.add(group, "--method", "NAME", help, [&result, names](const std::string& list) {
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = (std::min)(list.find(',', begin), list.size());
      const std::string name = list.substr(begin, end - begin);
      bool known = false;
      hana::for_each(espalier::tree_policies, [&](const auto& part) { known = known || part.name == name; });
      if (!known) refuse("--method", fmt::format("one of {}", names), name);
      if (std::find(result.methods.begin(), result.methods.end(), name) == result.methods.end())
        result.methods.push_back(name);
      begin = end + 1;
    }
  });
  std::string verifier_names;
  std::string verifier_help = "which drafted tokens to accept [greedy at temperature 0, else target-only]";
  hana::for_each(espalier::verifiers, [&](const auto& part) {
    verifier_names += (verifier_names.empty() ? "" : ", ") + std::string(part.name);
    verifier_help += entry(part.name, part.summary);
  });
  f.add(group, "--verifier", "NAME", verifier_help, [&result, verifier_names](const std::string& name) {
    bool known = false;
    hana::for_each(espalier::verifiers, [&](const auto& part) { known = known || part.name == name; });
    if (!known) refuse("--verifier", fmt::format("one of {}", verifier_names), name);
    result.verifier = name;
  });
  f.add_choice(group, "--commit", result.commit, "how the cache keeps an accepted path");
  f.add_options(group, "", result.target);
  f.add_number(group, "--threads", result.threads, 0, 256, "threads of a forward pass; 0: one for each processor");
}

void add_output(CLI::App& app, arguments& result) {
  constexpr auto group = "Output";
  flags f(app);
  app.add_flag("--compare", result.compare,
               "write each text with every method, and compare; exit with 1 if texts differ")
      ->group(group);
  f.add_number(group, "--repeats", result.repeats, 1, 1000, "runs of each method to compare; the median counts");
  app.add_flag("--show-tree", result.show_tree, "draw the tree of every round")->group(group);
  app.add_flag("--ascii", result.ascii, "draw with ASCII only")->group(group);
  f.add(group, "--svg", "FILE", "draw a round's tree as a picture",
        [&](const std::string& text) { result.svg = text; });
  f.add(group, "--dot", "FILE", "draw it for Graphviz", [&](const std::string& text) { result.dot = text; });
  f.add(group, "--round", "N", "which round to draw, from 0 on [the one whose accepted path is deepest]",
        [&](const std::string& text) {
          if (!read_number(text, 0, 1 << 30, result.round)) refuse("--round", "a whole number from 0 on", text);
        });
  app.add_flag("--json", result.json, "write one JSON object instead: text, tokens, statistics, options")->group(group);
}

// CLI11's own complaints, as sentences.
std::string sentence(const CLI::ParseError& error) {
  const std::string what = error.what();
  constexpr std::string_view extra = "The following argument";
  if (what.compare(0, extra.size(), extra) == 0) {
    const std::size_t colon = what.find(": ");
    const std::string names = colon == std::string::npos ? what : what.substr(colon + 2);
    return fmt::format("There is no such argument: {}.", names);
  }
  const std::size_t colon = what.find(": ");
  if (colon != std::string::npos && what.compare(0, 2, "--") == 0) return what.substr(0, colon) + " needs a value.";
  return what + (what.empty() || what.back() == '.' ? "" : ".");
}

void check(const arguments& result) {
  if (result.compare && (result.show_tree || !result.svg.empty() || !result.dot.empty()))
    throw usage_error("--show-tree, --svg and --dot draw one method's trees: they do not go with --compare.");
  if (!result.compare && result.methods.size() > 1)
    throw usage_error(fmt::format("--method names {} methods, which goes with --compare only.", result.methods.size()));
  if (result.json && result.show_tree) throw usage_error("--json writes no trees: it does not go with --show-tree.");
  if (result.round >= 0 && result.svg.empty() && result.dot.empty())
    throw usage_error("--round chooses what --svg or --dot draws: one of them is missing.");
  if (!result.prompts.empty() && !result.prompts_file.empty())
    throw usage_error("--prompt and --prompts do not go together.");
}

}  // namespace

arguments parse(int argc, const char* const* argv, std::string& help) {
  arguments result;
  result.models = default_models_path();
  CLI::App app(
      "Writes text with a language model, several tokens a step: a small model drafts a tree of\n"
      "continuations, the large one checks it in one pass. The text is what the large one alone\n"
      "would have written.");
  app.name("generate");
  app.formatter(std::make_shared<help_format>());
  app.set_help_flag();
  add_text(app, result);
  add_method(app, result);
  flags(app).add_options("Sampling: how the target chooses a token", "", result.target.sampling);
  add_output(app, result);
  app.set_help_flag("-h,--help", "print this")->group("Output");
  flags(app).add_options("Drafter: what the trees are grown from", "draft", result.draft);
  hana::for_each(espalier::tree_policies, [&](const auto& known) {
    hana::for_each(result.policies, [&](auto& part) {
      if (part.name == known.name)
        flags(app).add_options(fmt::format("{}: {}", part.name, part.summary), part.name, part.options);
    });
  });
  app.footer(
      "Examples:\n"
      "  generate --prompt \"Once upon a time\" --show-tree\n"
      "  generate --compare --max-tokens 256\n"
      "  generate --method dynatree --dynatree.max-breadth 4 --svg tree.svg\n"
      "  generate --temperature 0.8 --top-p 0.95 --seed 7");
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    help = app.help();
  } catch (const CLI::ParseError& error) {
    throw usage_error(sentence(error));
  }
  if (help.empty()) check(result);
  return result;
}

}  // namespace generate
