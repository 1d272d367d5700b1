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
#include <functional>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>

#include "help_format.hpp"
#include "models_path.hpp"
#include "pairings.hpp"

namespace generate {

namespace {

namespace hana = boost::hana;
using espalier::option_of;

std::string flag_name(std::string_view prefix, std::string_view name) {
  std::string flag = fmt::format("--{}{}{}", prefix, prefix.empty() ? "" : ".", name);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// The shortest text that reads back as the same number: 0.03 of a float, and not 0.029999999.
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

// Reads all of the text as a number in [low, high]; anything else, NaN too, is refused.
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

[[noreturn]] void refuse(const std::string& flag, const std::string& allowed, const std::string& given) {
  throw usage_error(fmt::format("{} must be {}, but is \"{}\".", flag, allowed, given));
}

// In --help: the default of a flag, and a name with what it stands for.
std::string bracketed(const std::string& value) {
  return fmt::format(" [{}]", value);
}
std::string entry(std::string_view name, std::string_view summary) {
  return fmt::format("\n  {:<18} {}", name, summary);
}

// Reads the text of a flag into an option's value.
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

// What --help says of an option: its meaning, its range or its values, its default.
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

// Adds flags to a CLI::App; every value is checked as it is read.
class flags {
 public:
  explicit flags(CLI::App& app) : app_(app) {}

  template <class OptionT, class ValueT>
  void add_option(const std::string& group, std::string_view prefix, const OptionT& option, ValueT& value) {
    const std::string flag = flag_name(prefix, option.name);
    add(group, flag, type_in_words<ValueT>(), option_help(option, value),
        [=, &value](const std::string& text) { read_option(flag, option, text, value); });
  }

  // One flag for each described field of an options struct.
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

void add_text(CLI::App& app, arguments& result) {
  constexpr auto group = "Text";
  flags f(app);
  f.add(group, "--prompt", "TEXT", "text to go on from; may be given several times [one of the model folder's]",
        [&](const std::string& text) { result.prompts.push_back(text); });
  f.add(group, "--prompts", "FILE", "a file of them, one a line in JSON: a string, or an object with text or tokens",
        [&](const std::string& text) { result.prompts_file = text; });
  f.add(group, "--models", "DIR", "folder with target, draft and tokenizer.model" + bracketed(result.models),
        [&](const std::string& text) { result.models = text; });
  f.add_option(group, "", option_of(&espalier::stop_conditions::max_tokens), result.max_tokens);
  f.add(group, "--stop", "TEXT", "stop after this text; may be given several times", [&](const std::string& text) {
    if (text.empty()) throw usage_error("--stop must not be empty.");
    result.stop.push_back(text);
  });
}

// A flag that names parts of the registry: one of them, or to compare a list with commas.
template <class PartsT>
void add_parts(flags& f, const std::string& flag, const PartsT& parts, const std::string& about,
               std::vector<std::string>& chosen) {
  std::vector<std::string> names;
  std::string help = about;
  hana::for_each(parts, [&](const auto& part) {
    names.emplace_back(part.name);
    help += entry(part.name, part.summary);
  });
  f.add("Method", flag, "NAME", help, [=, &chosen](const std::string& list) {
    for (std::size_t begin = 0; begin <= list.size();) {
      const std::size_t end = (std::min)(list.find(',', begin), list.size());
      const std::string name = list.substr(begin, end - begin);
      if (std::find(names.begin(), names.end(), name) == names.end())
        refuse(flag, fmt::format("one of {}", listed(names)), name);
      if (std::find(chosen.begin(), chosen.end(), name) == chosen.end()) chosen.push_back(name);
      begin = end + 1;
    }
  });
}

void add_method(CLI::App& app, arguments& result) {
  constexpr auto group = "Method";
  flags f(app);
  add_parts(f, "--method", espalier::tree_policies,
            "how to draft; with --compare a list with commas [dynatree; above temperature 0 delayed; best-first or "
            "chain where --drafter asks for it; to compare all]",
            result.methods);
  f.add_option(group, "", option_of(&arguments::drafter), result.drafter);
  f.add_option(group, "", option_of(&arguments::device), result.device);
  add_parts(f, "--verifier", espalier::verifiers,
            "which drafted tokens to accept; with --compare a list with commas [the first that fits the method, see "
            "Verifiers below]",
            result.verifiers);
  f.add(group, "--costs", "FILE",
        "what passes cost here, of nde costs, for methods that weigh time [measured before the first text, so that "
        "equal seeds need not write equal texts]",
        [&](const std::string& path) { result.costs = path; });
  f.add(group, "--selectors", "DIR",
        "networks for neural-delayed, VERIFIER.safetensors; specinfer's serves verifiers that have none [selector in "
        "the model folder]",
        [&](const std::string& path) { result.selectors = path; });
  f.add_option(group, "", option_of(&arguments::commit), result.commit);
  f.add_option(group, "", option_of(&arguments::seed), result.seed);
  f.add_options(group, "", result.target);
  f.add_option(group, "", option_of(&arguments::threads), result.threads);
}

// An option of a method, and how the text of a flag is read into it.
struct method_option {
  std::string method;
  std::string flag;  // with the method's name
  std::function<void(const std::string& flag, const std::string& text)> read;
};

// The options of all methods, by their flags without a method's name: --chain.length is that of chain alone, --length
// that of whatever method is used. The latter are kept until the methods are known.
struct method_options {
  std::multimap<std::string, method_option> by_flag;
  std::map<std::string, std::string> given;  // texts of such flags
};

void add_method_options(CLI::App& app, arguments& result, method_options& options) {
  hana::for_each(result.policies, [&](auto& part) {
    flags(app).add_options(fmt::format("{}: {}", part.name, part.summary), part.name, part.options);
    espalier::for_each_option(part.options, [&](const auto& option, auto& value) {
      options.by_flag.emplace(flag_name("", option.name),
                              method_option{std::string(part.name), flag_name(part.name, option.name),
                                            [option, &value](const std::string& flag, const std::string& text) {
                                              read_option(flag, option, text, value);
                                            }});
    });
  });
  for (const auto& [flag, option] : options.by_flag) {
    if (app.get_option_no_throw(flag) != nullptr) continue;
    flags(app).add("", flag, "VALUE", "", [&options, &flag = flag](const std::string& text) {
      if (text.compare(0, 2, "--") == 0) throw usage_error(flag + " needs a value.");
      options.given[flag] = text;
    });
  }
}

void set_method_options(const CLI::App& app, const method_options& options, const arguments& result) {
  const std::vector<pairing> used = pairings(result);
  for (const auto& [flag, text] : options.given) {
    bool found = false;
    std::vector<std::string> owners;
    const auto [begin, end] = options.by_flag.equal_range(flag);
    for (auto at = begin; at != end; ++at) {
      const method_option& option = at->second;
      owners.push_back(option.method);
      const bool is_used =
          std::any_of(used.begin(), used.end(), [&](const pairing& p) { return p.method == option.method; });
      if (!is_used) continue;
      found = true;
      if (app.get_option(option.flag)->count() == 0) option.read(flag, text);
    }
    if (!found) {
      throw usage_error(
          fmt::format("{} is an option of {}, not of --method {}.", flag, listed(owners), used.front().method));
    }
  }
}

// Options of drafters that are not used, as those of methods, are no options.
void refuse_options_of_others(const CLI::App& app, const arguments& result) {
  const auto refuse_unused = [&](drafter_kind drafter, const auto& options) {
    espalier::for_each_option(options, [&](const auto& option, const auto&) {
      const std::string flag = flag_name(espalier::name_of(drafter), option.name);
      if (result.drafter == drafter || app.get_option(flag)->count() == 0) return;
      throw usage_error(fmt::format("{} is an option of --drafter {}, not of --drafter {}.", flag,
                                    espalier::name_of(drafter), espalier::name_of(result.drafter)));
    });
  };
  refuse_unused(drafter_kind::prompt_lookup, result.prompt_lookup);
  refuse_unused(drafter_kind::ngram, result.ngram);
}

// Which verifiers fit which methods: methods that share them on one line, the default first.
std::string verifiers_in_words() {
  std::vector<std::pair<std::string, std::string>> lines;  // verifiers, methods
  for (const known_method& method : known_methods()) {
    if (!method.drafts) continue;
    const std::string verifiers = listed(method.sampling_verifiers);
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.first == verifiers; });
    if (same == lines.end()) {
      lines.emplace_back(verifiers, method.name);
    } else {
      same->second += fmt::format(", {}", method.name);
    }
  }
  std::string text =
      "Verifiers: which keep the distribution of the text, by method, the default first\n"
      "  at temperature 0: greedy for every method, or any of those below\n";
  for (const auto& [verifiers, methods] : lines)
    text += fmt::format("  {}:\n{}", methods, wrapped(verifiers, 6));
  return text;
}

void add_output(CLI::App& app, arguments& result) {
  constexpr auto group = "Output";
  flags f(app);
  app.add_flag("--compare", result.compare,
               "write each text with every method, and compare; at temperature 0 exit with 1 if texts differ")
      ->group(group);
  f.add_option(group, "", option_of(&arguments::repeats), result.repeats);
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

// CLI11's own complaints, as sentences. It does not name a flag that --help does not list; such a one is the last
// argument.
std::string sentence(const CLI::ParseError& error, const std::string& last) {
  const std::string what = error.what();
  if (what.compare(0, 2, ": ") == 0) return last + " needs a value.";
  const std::size_t colon = what.find(": ");
  if (colon != std::string::npos && what.compare(0, 2, "--") == 0) return what.substr(0, colon) + " needs a value.";
  return what + (what.empty() || what.back() == '.' ? "" : ".");
}

void check(const arguments& result) {
  if (result.compare && (result.show_tree || !result.svg.empty() || !result.dot.empty()))
    throw usage_error("--show-tree, --svg and --dot draw one method's trees: they do not go with --compare.");
  if (!result.compare && result.methods.size() > 1)
    throw usage_error(fmt::format("--method names {} methods, which goes with --compare only.", result.methods.size()));
  if (!result.compare && result.verifiers.size() > 1) {
    throw usage_error(
        fmt::format("--verifier names {} verifiers, which goes with --compare only.", result.verifiers.size()));
  }
  if (result.json && result.show_tree) throw usage_error("--json writes no trees: it does not go with --show-tree.");
  if (is_sequence(result.drafter) && !result.draft_options.empty()) {
    throw usage_error(fmt::format("--{} shapes probabilities, which --drafter {} does not have.",
                                  flag_name("draft", result.draft_options.front()).substr(2),
                                  espalier::name_of(result.drafter)));
  }
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
  flags(app).add_options("Sampling: how the target chooses a token", "", result.target.text.sampling);
  add_output(app, result);
  app.set_help_flag("-h,--help", "print this")->group("Output");
  flags(app).add_options(
      "Drafter: what trees are grown from (drawn ones: by default as the target, above temperature 0)", "draft",
      result.draft);
  flags(app).add_options("Drafter prompt-lookup", "prompt-lookup", result.prompt_lookup);
  flags(app).add_options("Drafter ngram", "ngram", result.ngram);
  method_options options;
  add_method_options(app, result, options);
  app.footer(verifiers_in_words() +
             "\nEvery option of a method may be given without the method's name: --length 4 is\n"
             "--chain.length 4 with --method chain, and with --compare the length of all methods that\n"
             "have one.\n"
             "\nExamples:\n"
             "  generate --prompt \"Once upon a time\" --show-tree\n"
             "  generate --compare --max-tokens 256\n"
             "  generate --method dynatree --max-breadth 4 --svg tree.svg\n"
             "  generate --drafter block --method best-first --budget 16\n"
             "  generate --temperature 0.8 --top-p 0.95 --seed 7\n"
             "  generate --method iid-paths --paths 3 --length 4 --verifier specinfer --temperature 1\n"
             "  generate --method delayed --verifier spectr,traversal --temperature 1 --compare");
  app.allow_extras();
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp&) {
    help = app.help();
    return result;
  } catch (const CLI::ParseError& error) {
    throw usage_error(sentence(error, argv[argc - 1]));
  }
  if (!app.remaining().empty())
    throw usage_error(fmt::format("There is no such argument: {}.", app.remaining().front()));
  espalier::for_each_option(result.draft, [&](const auto& option, auto&) {
    if (app.get_option(flag_name("draft", option.name))->count() > 0) result.draft_options.emplace_back(option.name);
  });
  check(result);
  refuse_options_of_others(app, result);
  set_method_options(app, options, result);
  result.target.text.seed = result.seed;
  return result;
}

}  // namespace generate
