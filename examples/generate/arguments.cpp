// SPDX-License-Identifier: BSL-1.0
#include "arguments.hpp"

#include <fmt/format.h>
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "../models/flags.hpp"
#include "../models/help_format.hpp"
#include "../models/models_path.hpp"
#include "../models/price_table.hpp"
#include "pairings.hpp"

namespace generate {

namespace {

using espalier::option_of;
using models::bracketed;
using models::entry;
using models::flag_name;
using models::flags;
using models::read_number;
using models::refuse;

#if defined(EXAMPLES_HAS_XGRAMMAR)
constexpr bool has_xgrammar = true;
#else
constexpr bool has_xgrammar = false;
#endif

void add_text(CLI::App& app, arguments& result) {
  constexpr auto group = "Text";
  flags f(app);
  f.add(group, "--prompt", "TEXT", "text to go on from; may be given several times [one of the model folder's]",
        [&](const std::string& text) { result.prompts.push_back(text); });
  f.add(group, "--prompts", "FILE", "a file of them, one a line in JSON: a string, or an object with text or tokens",
        [&](const std::string& text) { result.prompts_file = text; });
  models::add_model_paths(f, group, result.models);
  f.add(group, "--block", "PATH", "a model that drafts all depths in one pass [block in the folder of --model]",
        [&](const std::string& text) { result.models.block = text; });
  app.add_flag("--chat", result.chat, "talk, with a model that was trained to: read lines, and answer each")
      ->group(group);
  f.add(group, "--system", "TEXT", "said to a model that chats before anything else [as its file has it]",
        [&](const std::string& text) { result.system = text; });
  app.add_flag("--raw", result.raw, "go on from prompts as they are, with models that chat, too")->group(group);
  f.add_option(group, "", option_of(&espalier::stop_conditions::max_tokens), result.max_tokens);
  f.add(group, "--stop", "TEXT", "stop after this text; may be given several times", [&](const std::string& text) {
    if (text.empty()) throw usage_error("--stop must not be empty.");
    result.stop.push_back(text);
  });
  f.add(group, "--regex", "PATTERN", "write what matches this regular expression, all of it",
        [&](const std::string& text) {
          if (text.empty()) throw usage_error("--regex must not be empty.");
          result.regex = text;
        });
  f.add(group, "--json-schema", "FILE", "write JSON that this schema describes",
        [&](const std::string& path) { result.json_schema = path; });
  app.add_flag("--ignore-formats", result.ignore_formats,
               "let a schema's strings have any text where its format is unknown")
      ->group(group);
  app.add_flag("--json-lines", result.json_lines, "let JSON of a schema have line breaks and indents")->group(group);
  f.add(group, "--grammar", "FILE", "write what this grammar derives from its rule root (xgrammar's EBNF)",
        [&](const std::string& path) {
          if (!has_xgrammar) {
            throw usage_error(
                "--grammar needs xgrammar, without which this program was built: ./run with-xgrammar generate fetches "
                "it and builds the program with it, as CMake does where CMAKE_PREFIX_PATH names its folder.");
          }
          result.grammar = path;
        });
}

// Adds a flag that names parts of a list: one of them, or several with commas to compare them.
template <class PartT>
void add_parts(flags& f, const std::string& flag, const part_list<PartT>& parts, const std::string& about,
               std::vector<std::string>& chosen) {
  std::vector<std::string> names;
  std::string help = about;
  for (const auto& part : parts) {
    names.emplace_back(part->name);
    help += entry(part->name, part->summary);
  }
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
  add_parts(f, "--method", result.parts.methods,
            "how to draft; with --compare a list with commas [dynatree; above temperature 0 delayed; best-first over a "
            "block; cost-aware over --draft and over text; to compare all]",
            result.methods);
  f.add_option(group, "", option_of(&arguments::drafter), result.drafter);
  f.add(group, "--text-method", "NAME",
        "also draft from the text, by this method of chosen trees, and merge the two trees of a round [no]",
        [&](const std::string& name) { result.text_method = name; });
  app.add_flag("--ahead", result.ahead,
               "draft the next round on a thread of its own while the target computes this one, with a draft model")
      ->group(group);
  f.add_option(group, "", option_of(&arguments::device), result.device);
  add_parts(f, "--verifier", result.parts.verifiers,
            "which drafted tokens to accept; with --compare a list with commas [the first that fits the method, see "
            "Verifiers below]",
            result.verifiers);
  f.add(group, "--costs", "FILE",
        "what passes cost here, of nde costs, for methods that weigh time [measured before the first text, so that "
        "equal seeds need not write equal texts]",
        [&](const std::string& path) { result.costs = path; });
  f.add(group, "--price", "FILE",
        "count seconds as passes cost on another machine, by a table of bench/prices or of nde costs; methods that "
        "weigh time believe it [by the clock]",
        [&](const std::string& path) {
          result.price = std::make_shared<models::price_table>(models::price_table::load(path));
        });
  f.add(group, "--selectors", "DIR",
        "networks for neural-delayed, VERIFIER.safetensors; specinfer's serves verifiers that have none [selector in "
        "the model folder, or beside the draft]",
        [&](const std::string& path) { result.selectors = path; });
  f.add_option(group, "", option_of(&arguments::commit), result.commit);
  f.add_option(group, "", option_of(&arguments::seed), result.seed);
  f.add_options(group, "", result.target);
  f.add_option(group, "", option_of(&arguments::threads), result.threads);
  f.add_option(group, "", option_of(&arguments::arithmetic), result.arithmetic);
  f.add_option(group, "", option_of(&arguments::weights), result.weights);
}

// An option of a method or a verifier, and a function that reads the text of its flag.
struct part_option {
  std::string part;
  std::string flag;  // the flag with the part's name
  std::function<void(const std::string& flag, const std::string& text)> read;
};

// The options of all parts, by their flags without a part's name: --chain.length sets that of chain alone, --length
// that of the method in use. The texts of the latter are kept until the methods are known.
struct part_options {
  std::multimap<std::string, part_option> by_flag;
  std::map<std::string, std::string> given;  // the texts of such flags
};

template <class PartT>
void add_options_of(CLI::App& app, const part_list<PartT>& parts, part_options& options) {
  for (const auto& part : parts) {
    const std::vector<models::text_option> all = part->options();
    flags(app).add_each(fmt::format("{}: {}", part->name, part->summary), part->name, all);
    for (const models::text_option& option : all) {
      options.by_flag.emplace(flag_name("", option.name),
                              part_option{std::string(part->name), flag_name(part->name, option.name), option.read});
    }
  }
}

void add_part_options(CLI::App& app, arguments& result, part_options& options) {
  add_options_of(app, result.parts.methods, options);
  add_options_of(app, result.parts.verifiers, options);
  for (const auto& [flag, option] : options.by_flag) {
    if (app.get_option_no_throw(flag) != nullptr) continue;
    flags(app).add("", flag, "VALUE", "", [&options, &flag = flag](const std::string& text) {
      if (text.compare(0, 2, "--") == 0) throw usage_error(flag + " needs a value.");
      options.given[flag] = text;
    });
  }
}

void set_part_options(const CLI::App& app, const part_options& options, const arguments& result) {
  const std::vector<pairing> used = pairings(result);
  for (const auto& [flag, text] : options.given) {
    bool found = false;
    std::vector<std::string> owners;
    const auto [begin, end] = options.by_flag.equal_range(flag);
    for (auto at = begin; at != end; ++at) {
      const part_option& option = at->second;
      owners.push_back(option.part);
      const bool is_used =
          option.part == result.text_method || std::any_of(used.begin(), used.end(), [&](const pairing& p) {
            return p.method == option.part || p.verifier == option.part;
          });
      if (!is_used) continue;
      found = true;
      if (app.get_option(option.flag)->count() == 0) option.read(flag, text);
    }
    if (!found) {
      const bool verifies = result.parts.verifiers.find(owners.front()) != nullptr;
      throw usage_error(fmt::format("{} is an option of {}, not of --{} {}.", flag, listed(owners),
                                    verifies ? "verifier" : "method",
                                    verifies ? used.front().verifier : used.front().method));
    }
  }
}

// The verifiers that fit each method, the default first; methods that share them are on one line.
std::string verifiers_in_words(const parts& offered) {
  std::vector<std::pair<std::string, std::string>> lines;  // verifiers, and their methods
  for (const auto& method : offered.methods) {
    if (!method->drafts) continue;
    const std::string verifiers = listed(verifiers_for(offered, *method, true));
    const auto same = std::find_if(lines.begin(), lines.end(), [&](const auto& l) { return l.first == verifiers; });
    if (same == lines.end()) {
      lines.emplace_back(verifiers, method->name);
    } else {
      same->second += fmt::format(", {}", method->name);
    }
  }
  std::string text =
      "Verifiers: which keep the distribution of the text, by method, the default first\n"
      "  at temperature 0: greedy for every method, or any of those below\n";
  for (const auto& [verifiers, methods] : lines)
    text += fmt::format("  {}:\n{}", methods, models::wrapped(verifiers, 6));
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

void check_price(const arguments& result) {
  if (!result.costs.empty())
    throw usage_error("--price is what methods that weigh time believe, too: --costs does not go with it.");
  if (result.device == device_kind::cuda)
    throw usage_error("--price counts passes of --device cpu: with --device cuda the host does not see them.");
  const bool drafts = result.methods != std::vector<std::string>{"plain"};
  if (drafts && result.drafter != drafter_kind::text && !result.price->has_draft()) {
    throw usage_error(
        fmt::format("{} has no prices of a draft: it goes with --drafter text, or with "
                    "--method plain.",
                    result.price->file));
  }
}

void check_on_device(const arguments& result) {
  using espalier::weight_storage;
  const bool held = result.weights == weight_storage::fastest || result.weights == weight_storage::f32 ||
                    result.weights == weight_storage::bf16;
  if (!held) {
    throw usage_error(
        fmt::format("--weights {} does not run on --device cuda: f32 and bf16 do.", espalier::name_of(result.weights)));
  }
  if (result.arithmetic != espalier::matrix_arithmetic::exact) {
    throw usage_error(fmt::format("--arithmetic {} does not run on --device cuda: exact does.",
                                  espalier::name_of(result.arithmetic)));
  }
}

// Refuses what the tree of the text cannot be merged with.
void check_text_method(const arguments& result) {
  const method* grown = result.parts.methods.find(result.text_method);
  std::vector<std::string> chosen;
  for (const auto& method : result.parts.methods)
    if (method->merges()) chosen.emplace_back(method->name);
  if (grown == nullptr || !grown->merges())
    refuse("--text-method", fmt::format("one of {}", listed(chosen)), result.text_method);
  if (result.drafter == drafter_kind::text)
    throw usage_error("--text-method drafts from the text beside another drafter: it does not go with --drafter text.");
  if (result.device == device_kind::cuda)
    throw usage_error("--text-method drafts on the host: it does not go with --device cuda.");
  for (const std::string& name : result.methods) {
    if (find_method(result.parts, name).merges() || (result.compare && name == "plain")) continue;
    throw usage_error(
        fmt::format("--text-method merges trees of chosen tokens, and --method {} has none: it goes with {}.", name,
                    listed(chosen)));
  }
}

// Refuses what would leave nothing to be drafted ahead.
void check_ahead(const arguments& result) {
  const auto refuses = [&](bool is_given, const std::string& flag, const char* why) {
    if (is_given) throw usage_error(fmt::format("--ahead does not go with {}: {}.", flag, why));
  };
  refuses(result.drafter != drafter_kind::model, fmt::format("--drafter {}", espalier::name_of(result.drafter)),
          "only a draft model drafts ahead");
  refuses(result.device == device_kind::cuda, "--device cuda", "the host drafts ahead");
  refuses(!result.text_method.empty(), "--text-method", "it drafts from what the target writes");
  refuses(result.constrains(), "a constraint", "it depends on what the target writes");
  refuses(result.price != nullptr, "--price", "a table counts passes one after the other");
  for (const std::string& name : result.methods) {
    refuses(name == "neural-delayed", "--method neural-delayed", "it reads the states of the target");
    refuses(name == "plain" && !result.compare, "--method plain", "it drafts nothing");
  }
}

void check_self(const arguments& result) {
  const models::self_draft_options& self = result.self;
  const bool cheaper_products = self.arithmetic == espalier::matrix_arithmetic::integer &&
                                result.arithmetic != espalier::matrix_arithmetic::integer;
  if (self.window == 0 && self.layers == 0 && !cheaper_products) {
    throw usage_error(
        "--drafter self would draft with passes as dear as the target's: --self.window or --self.layers makes them "
        "cheaper, and beside exact products --self.arithmetic integer does.");
  }
  for (const auto& [flag, path] : {std::pair("--draft", result.models.draft), {"--block", result.models.block}}) {
    if (!path.empty())
      throw usage_error(fmt::format("--drafter self drafts with the target: {} does not go with it.", flag));
  }
  if (result.device == device_kind::cuda) throw usage_error("--drafter self drafts on --device cpu only.");
  for (const auto& [flag, given] : {std::pair("--costs", !result.costs.empty()), {"--price", result.price != nullptr}})
    if (given) throw usage_error(fmt::format("{} has no seconds of the passes of --drafter self.", flag));
}

void check(const arguments& result) {
  if (result.drafter == drafter_kind::self) check_self(result);
  if (result.compare && (result.show_tree || !result.svg.empty() || !result.dot.empty()))
    throw usage_error("--show-tree, --svg and --dot draw one method's trees: they do not go with --compare.");
  if (!result.compare && result.methods.size() > 1)
    throw usage_error(fmt::format("--method names {} methods, which goes with --compare only.", result.methods.size()));
  if (!result.compare && result.verifiers.size() > 1) {
    throw usage_error(
        fmt::format("--verifier names {} verifiers, which goes with --compare only.", result.verifiers.size()));
  }
  if (result.json && result.show_tree) throw usage_error("--json writes no trees: it does not go with --show-tree.");
  if (result.drafter == drafter_kind::text && !result.draft_options.empty()) {
    throw usage_error(fmt::format("{} shapes the probabilities of a draft model, and --drafter text has none.",
                                  flag_name("draft", result.draft_options.front())));
  }
  if (result.price) check_price(result);
  if (result.device == device_kind::cuda) check_on_device(result);
  if (!result.text_method.empty()) check_text_method(result);
  if (result.ahead) check_ahead(result);
  if (result.round >= 0 && result.svg.empty() && result.dot.empty())
    throw usage_error("--round chooses what --svg or --dot draws: one of them is missing.");
  if (result.chat && (result.compare || result.json || result.show_tree || result.raw || !result.prompts.empty() ||
                      !result.prompts_file.empty() || !result.svg.empty() || !result.dot.empty())) {
    throw usage_error(
        "--chat reads what is said, and streams answers: prompts, --raw, --compare, --json and pictures "
        "do not go with it.");
  }
  if (result.raw && !result.system.empty()) throw usage_error("--system says something in a chat, which --raw is not.");
  std::vector<std::string> constraints;
  const std::pair<const char*, const std::string&> rules[] = {
      {"--regex", result.regex}, {"--json-schema", result.json_schema}, {"--grammar", result.grammar}};
  for (const auto& [flag, value] : rules) {
    if (!value.empty()) constraints.emplace_back(flag);
  }
  if (constraints.size() > 1)
    throw usage_error(fmt::format("{} and {} do not go together.", constraints[0], constraints[1]));
  if (result.json_schema.empty() && (result.ignore_formats || result.json_lines))
    throw usage_error(fmt::format("{} needs --json-schema.", result.json_lines ? "--json-lines" : "--ignore-formats"));
  if (!result.prompts.empty() && !result.prompts_file.empty())
    throw usage_error("--prompt and --prompts do not go together.");
}

}  // namespace

arguments parse(int argc, const char* const* argv, parts offered, std::string& help) {
  arguments result;
  result.parts = std::move(offered);
  result.models.model = models::default_models_path();
  CLI::App app(
      "Writes text with a language model, several tokens a step: a small model drafts a tree of\n"
      "continuations, the large one checks it in one pass. The text is what the large one alone\n"
      "would have written.");
  app.name("generate");
  app.formatter(std::make_shared<models::help_format>("generate [--prompt TEXT] [--method NAME] [--compare] ..."));
  app.set_help_flag();
  add_text(app, result);
  add_method(app, result);
  flags(app).add_options("Sampling: how the target chooses a token", "", result.target.text.sampling);
  add_output(app, result);
  app.set_help_flag("-h,--help", "print this")->group("Output");
  flags(app).add_options(
      "Drafter: what trees are grown from (drawn ones: by default as the target, above temperature 0)", "draft",
      result.draft);
  flags(app).add_options("Drafter self: what makes the target's drafting passes cheaper than its own", "self",
                         result.self);
  part_options options;
  add_part_options(app, result, options);
  app.footer(verifiers_in_words(result.parts) +
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
    throw usage_error(models::sentence(error, argv[argc - 1]));
  }
  if (!app.remaining().empty()) throw models::no_such_argument(app);
  espalier::for_each_option(result.draft, [&](const auto& option, auto&) {
    if (app.get_option(flag_name("draft", option.name))->count() > 0) result.draft_options.emplace_back(option.name);
  });
  if (result.drafter == drafter_kind::automatic) result.drafter = models::drafter_beside(result.models.resolved());
  espalier::for_each_option(result.self, [&](const auto& option, auto&) {
    const std::string flag = flag_name("self", option.name);
    if (app.get_option(flag)->count() > 0 && result.drafter != drafter_kind::self)
      throw usage_error(
          fmt::format("{} goes with --drafter self, not with --drafter {}.", flag, espalier::name_of(result.drafter)));
  });
  check(result);
  set_part_options(app, options, result);
  result.target.text.seed = result.seed;
  return result;
}

}  // namespace generate
