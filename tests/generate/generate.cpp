// SPDX-License-Identifier: BSL-1.0
// The program as its users meet it, with the bundled models.
#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/registry.hpp"
#include "program.hpp"

namespace {

namespace hana = boost::hana;
using nlohmann::json;

bool contains(std::string_view text, std::string_view what) {
  return text.find(what) != std::string_view::npos;
}

std::string flag(std::string_view prefix, std::string_view name) {
  std::string text = "--" + std::string(prefix) + (prefix.empty() ? "" : ".") + std::string(name);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

// Calls see(prefix, option, value) for every option that has a flag.
template <class SeeT>
void for_each_flag(const SeeT& see) {
  const auto all = [&](std::string_view prefix, auto options) {
    espalier::for_each_option(options, [&](const auto& option, auto& value) { see(prefix, option, value); });
  };
  all("", espalier::sampling_options());
  all("draft", espalier::sampling_options());
  all("", espalier::decoder_options());
  all("prompt-lookup", espalier::prompt_lookup_options());
  all("ngram", espalier::ngram_options());
  hana::for_each(espalier::tree_policies, [&](const auto& part) { all(part.name, part.options); });
}

json written(const std::string& arguments) {
  const outcome result = run("--json " + arguments);
  INFO(arguments);
  REQUIRE(result.err == "");
  REQUIRE(result.status == 0);
  REQUIRE(json::accept(result.out));
  return json::parse(result.out);
}

std::string text_of(const json& object) {
  return object.at("texts").at(0).at("text");
}

}  // namespace

TEST_CASE("--help names every flag and every part, in lines that fit", "[generate]") {
  const outcome help = run("--help");
  CHECK(help.status == 0);
  CHECK(help.err == "");
  int flags = 0;
  for_each_flag([&](std::string_view prefix, const auto& option, const auto&) {
    INFO(prefix << "." << option.name);
    CHECK(contains(help.out, "  " + flag(prefix, option.name) + " "));
    ++flags;
  });
  CHECK(flags > 30);
  hana::for_each(espalier::tree_policies, [&](const auto& part) { CHECK(contains(help.out, part.name)); });
  hana::for_each(espalier::verifiers, [&](const auto& part) { CHECK(contains(help.out, part.name)); });
  CHECK(contains(
      help.out, "  iid-paths, specinfer-static, delayed, neural-delayed:\n      traversal, target-only, naive-tree, "));
  CHECK(contains(help.out,
                 "  dyspec-greedy, dyspec-threshold, dyspec-adaptive, sequoia, cost-aware-draws:\n      "
                 "traversal-distinct, target-only, "
                 "residual-walk\n"));
  for (const char* name : {"--prompt ",   "--prompts ", "--models ",    "--max-tokens ", "--stop ",   "--method ",
                           "--verifier ", "--device ",  "--drafter ",   "prompt-lookup", "--commit ", "--threads ",
                           "--compare ",  "--repeats ", "--show-tree ", "--ascii ",      "--svg ",    "--dot ",
                           "--round ",    "--json ",    "heavy-path",   "truncate"}) {
    INFO(name);
    CHECK(contains(help.out, name));
  }
  std::istringstream lines(help.out);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    CHECK(line.size() <= 100);
  }
}

TEST_CASE("every flag reaches its option, and JSON tells it", "[generate]") {
  hana::for_each(espalier::tree_policies, [](const auto& part) {
    std::string arguments = "--max-tokens 2 --prompt x --method " + std::string(part.name);
    json expected = json::object();
    auto options = part.options;
    espalier::for_each_option(options, [&](const auto& option, auto& value) {
      using value_type = std::remove_reference_t<decltype(value)>;
      arguments.append(" ").append(flag(part.name, option.name)).append(" ");
      if constexpr (std::is_same_v<value_type, bool>) {
        arguments += value ? "off" : "on";
        expected[std::string(option.name)] = !value;
      } else {
        arguments += std::to_string(static_cast<value_type>(option.low));
        expected[std::string(option.name)] = static_cast<value_type>(option.low);
      }
    });
    const json object = written(arguments);
    CHECK(object.at("method") == part.name);
    CHECK(object.at("options").at(std::string(part.name)) == expected);
  });
  const json object = written(
      "--prompt x --max-tokens 2 --temperature 0.8 --top-k 9 --top-p 0.9 --min-p 0.01 --draft.temperature 0.7 "
      "--seed 18446744073709551615 --order heavy-path --commit truncate --stop zzz");
  const json& options = object.at("options");
  CHECK(options.at("sampling") == json{{"temperature", 0.8}, {"top_k", 9}, {"top_p", 0.9}, {"min_p", 0.01}});
  CHECK(options.at("draft").at("temperature") == 0.7);
  CHECK(options.at("seed") == 18446744073709551615ULL);
  CHECK(options.at("order") == "heavy-path");
  CHECK(options.at("commit") == "truncate");
  CHECK(options.at("stop") == json{"zzz"});
  CHECK(object.at("method") == "delayed");
  CHECK(object.at("verifier") == "traversal");
}

TEST_CASE("an option without its method's name is that of the methods used, unless they have their own", "[generate]") {
  const auto options_of = [](const std::string& arguments) {
    return written("--prompt x --max-tokens 2 " + arguments).at("options");
  };
  CHECK(options_of("--method iid-paths --paths 3 --length 1").at("iid-paths") == json{{"paths", 3}, {"length", 1}});
  CHECK(options_of("--length 1 --iid-paths.length 2 --method iid-paths").at("iid-paths").at("length") == 2);
  CHECK(options_of("--history off --max-breadth 4").at("dynatree").at("history") == false);
  const outcome compared =
      run("--compare --json --repeats 1 --prompt x --max-tokens 2 --method chain,delayed,fixed --length 2");
  REQUIRE(compared.status == 0);
  const json methods = json::parse(compared.out).at("methods");
  CHECK(methods.at(1).at("options").at("chain").at("length") == 2);
  CHECK(methods.at(2).at("options").at("delayed").at("length") == 2);
}

TEST_CASE("drawn trees are drawn as the target samples, unless flags say otherwise", "[generate]") {
  const auto draft_of = [](const std::string& arguments) {
    const json draft = written("--prompt x --max-tokens 2 " + arguments).at("options").at("draft");
    return std::pair(draft.at("temperature").get<double>(), draft.at("top_p").get<double>());
  };
  const std::string drawn = "--method iid-paths --temperature 0.6 --top-p 0.9 ";
  CHECK(draft_of(drawn) == std::pair(0.6, 0.9));
  CHECK(draft_of(drawn + "--draft.temperature 1") == std::pair(1.0, 0.9));
  CHECK(draft_of(drawn + "--draft.top-p 1") == std::pair(0.6, 1.0));
  CHECK(draft_of("--method iid-paths") == std::pair(1.0, 1.0));
  CHECK(draft_of("--method chain --temperature 0.6 --top-p 0.9") == std::pair(1.0, 1.0));
}

TEST_CASE("what cannot be used is named in one sentence, with status 2", "[generate]") {
  struct fault {
    std::string arguments, message;
  };
  const std::string no_models = scratch() + "/nowhere";
  const std::string without_block = scratch() + "/pair";
  std::filesystem::create_directories(without_block);
  for (const char* part : {"target", "draft", "tokenizer.model"}) {
    if (!std::filesystem::exists(without_block + "/" + part))
      std::filesystem::create_symlink(std::string(GENERATE_MODELS "/") + part, without_block + "/" + part);
  }
  { std::ofstream(scratch() + "/bad.jsonl") << "\"fine\"\n{\"text\": 3}\n"; }
  { std::ofstream(scratch() + "/empty.jsonl") << "\n\n"; }
  for (const fault& f : std::vector<fault>{
           {"--nonsense", "There is no such argument: --nonsense."},
           {"stray", "There is no such argument: stray."},
           {"--prompt", "--prompt needs a value."},
           {"--prompt ''", "--prompt is empty"},
           {"--max-tokens 0", "--max-tokens must be a whole number, 1 and more, but is \"0\"."},
           {"--max-tokens 5.5", "but is \"5.5\"."},
           {"--max-tokens ten", "but is \"ten\"."},
           {"--temperature -1", "--temperature must be a number, 0 to 100, but is \"-1\"."},
           {"--temperature nan", "but is \"nan\"."},
           {"--top-p 0", "--top-p must be"},
           {"--seed 18446744073709551616", "--seed must be"},
           {"--threads 1000", "--threads must be a whole number, 0 to 256"},
           {"--order sideways", "--order must be one of insertion, breadth-first, depth-first, heavy-path"},
           {"--commit maybe", "--commit must be one of compact, truncate"},
           {"--method best", "--method must be one of plain, chain, "},
           {"--method chain,fixed", "--method names 2 methods"},
           {"--verifier wish", "--verifier must be one of greedy, "},
           {"--verifier greedy --temperature 1", "goes with --temperature 0 only"},
           {"--verifier specinfer --temperature 1 --method chain",
            "--verifier specinfer would change the distribution of the text with --method chain: specinfer goes with "},
           {"--verifier naive,block --method sampled-chain", "--verifier names 2 verifiers, which goes with --compare"},
           {"--device abacus", "--device must be one of cpu, cuda, but is"},
           {"--drafter crystal-ball", "--drafter must be one of model, block, prompt-lookup, ngram, but is"},
           {"--drafter ngram --method dynatree", "--drafter ngram does not have: it goes with plain, chain."},
           {"--drafter prompt-lookup --draft.top-p 0.5",
            "--draft.top-p shapes probabilities, which --drafter prompt-lookup"},
           {"--drafter block --models " + without_block, "the model folder " + without_block + " has no folder block"},
           {"--drafter block --ngram.order 3",
            "--ngram.order is an option of --drafter ngram, not of --drafter block."},
           {"--drafter ngram --ngram.order 3 --ngram.min-order 4", "option min_order is 4"},
           {"--paths 3", "--paths is an option of iid-paths, delayed, neural-delayed, not of --method dynatree."},
           {"--length 0 --method chain", "--length must be a whole number, 1 to 1024, but is \"0\"."},
           {"--length 65 --method delayed", "--length must be a whole number, 0 to 64, but is \"65\"."},
           {"--sampled-chain.length 99", "--sampled-chain.length must be a whole number, 0 to 64, but is \"99\"."},
           {"--length", "--length needs a value."},
           {"--paths --method iid-paths", "--paths needs a value."},
           {"one --two three", "There is no such argument: one."},
           {"--dynatree.base-depth 99", "--dynatree.base-depth must be a whole number, 1 to 64, but is \"99\"."},
           {"--dynatree.base-depth 9 --dynatree.max-depth 8", "--method dynatree: option base_depth is 9"},
           {"--dynatree.history perhaps", "--dynatree.history must be on or off"},
           {"--round 3", "--round chooses"},
           {"--prompt x --max-tokens 2 --svg " + scratch() + "/x.svg --round 50", "--round 50 cannot be drawn"},
           {"--prompt x --max-tokens 2 --svg /nonexistent/x.svg", "/nonexistent/x.svg cannot be written."},
           {"--compare --show-tree", "do not go with --compare"},
           {"--json --show-tree", "--json writes no trees"},
           {"--prompt x --prompts y", "--prompt and --prompts do not go together."},
           {"--stop ''", "--stop must not be empty."},
           {"--models " + no_models, "the model folder " + no_models + " has no target/config.json"},
           {"--prompts " + no_models, no_models + " cannot be opened."},
           {"--prompts " + scratch() + "/bad.jsonl", "bad.jsonl, line 2 has a \"text\" that is no string"},
           {"--prompts " + scratch() + "/empty.jsonl", "holds no prompt."},
           {"--prompt \"$(printf 'word %.0s' $(seq 2000))\"", "leaves no room to write"},
       }) {
    INFO(f.arguments);
    const outcome result = run(f.arguments);
    CHECK(result.status == 2);
    // That a text is too short for a round shows once it is written.
    if (!contains(f.arguments, "--round 50")) CHECK(result.out == "");
    CHECK(contains(result.err, f.message));
    CHECK(result.err.compare(0, 10, "generate: ") == 0);
    CHECK_FALSE(contains(result.err, "terminate"));
    const std::string first = result.err.substr(0, result.err.find('\n'));
    CHECK(first.back() == '.');
  }
}

TEST_CASE("every lossless pair writes, and every other one is refused by name", "[generate]") {
  int pairs = 0;
  hana::for_each(espalier::tree_policies, [&]<class PolicyT>(const PolicyT& policy) {
    hana::for_each(espalier::verifiers, [&]<class VerifierT>(const VerifierT& verifier) {
      const std::string arguments = "--method " + std::string(policy.name) + " --verifier " +
                                    std::string(verifier.name) + " --temperature 1 --seed 3 --prompt Once";
      INFO(arguments);
      constexpr bool lossless = espalier::compatible(PolicyT::type::sampling, VerifierT::type::lossless);
      if constexpr (lossless && !espalier::is_argmax_only<typename VerifierT::type>) {
        const json object = written(arguments + " --max-tokens 6");
        CHECK(object.at("verifier") == verifier.name);
        CHECK(object.at("texts").at(0).at("tokens").size() == 6);
        ++pairs;
      } else {
        const outcome result = run(arguments);
        CHECK(result.status == 2);
        CHECK(contains(result.err, "generate: --verifier " + std::string(verifier.name) + " w"));
      }
    });
  });
  CHECK(pairs > 30);
}

TEST_CASE("where no verifier is named it is the one that suits the method and the temperature", "[generate]") {
  const auto verifier_of = [](const std::string& arguments) {
    return written("--prompt x --max-tokens 2 --method " + arguments).at("verifier").get<std::string>();
  };
  CHECK(verifier_of("delayed") == "greedy");
  CHECK(verifier_of("delayed --temperature 1") == "traversal");
  CHECK(verifier_of("sampled-chain --temperature 1") == "traversal");
  CHECK(verifier_of("dyspec-greedy --budget 4 --temperature 1") == "traversal-distinct");
  CHECK(verifier_of("chain --temperature 1") == "target-only");
  CHECK(verifier_of("plain --temperature 1") == "target-only");
}

TEST_CASE("all methods, orders and commit modes write plain decoding's text", "[generate]") {
  const std::string prompt = "--prompt 'Question: How many legs have 3 dogs?' --max-tokens 24 ";
  const std::string expected = text_of(written(prompt + "--method plain"));
  CHECK(expected.size() > 10);
  const outcome compared = run(prompt + "--compare --repeats 1 --json");
  REQUIRE(compared.status == 0);
  const json object = json::parse(compared.out);
  CHECK(object.at("equal") == true);
  std::set<std::string> methods;
  for (const json& method : object.at("methods")) {
    methods.insert(method.at("method").get<std::string>());
    CHECK(method.at("equal") == true);
    CHECK(method.at("texts").at(0).at("text") == expected);
    CHECK(method.at("statistics").at("tokens") == object.at("methods").at(0).at("statistics").at("tokens"));
    CHECK(method.at("speedup") > 0.0);
  }
  hana::for_each(espalier::tree_policies, [&](const auto& part) { CHECK(methods.count(std::string(part.name)) == 1); });
  for (const auto& order : espalier::known_values<espalier::node_order>)
    CHECK(text_of(written(prompt + "--order " + std::string(order.name))) == expected);
  for (const auto& mode : espalier::known_values<espalier::commit_mode>)
    CHECK(text_of(written(prompt + "--method fixed --commit " + std::string(mode.name))) == expected);
  CHECK(text_of(written(prompt + "--verifier target-only")) == expected);
  CHECK(text_of(written(prompt + "--threads 1")) == expected);
}

TEST_CASE("every method writes plain decoding's text from every drafter", "[generate]") {
  const std::string prompt = "--prompt 'Question: How many legs have 3 dogs?' --max-tokens 24 ";
  const std::string expected = text_of(written(prompt + "--method plain"));
  for (const auto& [drafter, least] : {std::pair("block", 16), std::pair("prompt-lookup", 2), std::pair("ngram", 2)}) {
    INFO(drafter);
    const outcome compared = run(prompt + "--compare --repeats 1 --json --drafter " + drafter);
    REQUIRE(compared.status == 0);
    const json object = json::parse(compared.out);
    CHECK(object.at("equal") == true);
    CHECK(static_cast<int>(object.at("methods").size()) >= least);
    CHECK(object.at("methods").at(1).at("options").at("drafter") == drafter);
    CHECK(object.at("methods").at(1).at("texts").at(0).at("text") == expected);
    CHECK(object.at("methods").at(1).at("statistics").at("accepted") > 0);
  }
  CHECK(written(prompt + "--drafter block").at("method") == "best-first");
  CHECK(written(prompt + "--drafter ngram").at("method") == "chain");
  // Drawn trees over a block, at a temperature; and a block whose probabilities flags have shaped.
  CHECK(written(prompt + "--drafter block --method delayed --temperature 1").at("verifier") == "traversal");
  CHECK(text_of(written(prompt + "--drafter block --draft.top-k 3")) == expected);
}

TEST_CASE("JSON and the streamed text are the same text, of as many tokens as asked for", "[generate]") {
  const std::string arguments = "--prompt 'The river' --max-tokens 20 --method fixed";
  const json object = written(arguments);
  const json& entry = object.at("texts").at(0);
  CHECK(entry.at("prompt") == "The river");
  CHECK(entry.at("end") == "length");
  CHECK(entry.at("tokens").size() == 20);
  CHECK(object.at("statistics").at("tokens") == 20);
  const json& seconds = object.at("statistics").at("seconds");
  CHECK(seconds.size() == 7);
  CHECK(seconds.at("target_forward") > 0.0);
  CHECK(seconds.at("draft_forward") > 0.0);
  const outcome streamed = run(arguments);
  CHECK(streamed.status == 0);
  CHECK(streamed.out.compare(0, text_of(object).size(), text_of(object)) == 0);
  CHECK(contains(streamed.out, "20 tokens by fixed with greedy in "));
  CHECK(contains(streamed.out, "ended by: length"));
}

TEST_CASE("no escape code is written where there is no terminal", "[generate]") {
  for (const char* arguments : {"", "--show-tree", "--compare --repeats 1", "--json", "--help"}) {
    const outcome result =
        run("--prompt 'The river' --max-tokens 8 " + std::string(arguments), "FORCE_COLOR=1 TERM=xterm");
    INFO(arguments);
    CHECK(result.status == 0);
    CHECK(result.out.find('\x1b') == std::string::npos);
    CHECK(result.err == "");
  }
}

TEST_CASE("on a terminal authors have colours, unless NO_COLOR is set", "[generate]") {
  if (std::system("script --version 2>/dev/null | grep -q util-linux") != 0) {
    WARN("there is no script(1) of util-linux to make a terminal with");
    return;
  }
  const auto on_terminal = [](const std::string& environment) {
    const std::string out = scratch() + "/terminal";
    const std::string command = environment +
                                " script -qec \"'" GENERATE_PROGRAM
                                "' --prompt 'The river' --max-tokens 8 --method fixed\" /dev/null </dev/null >'" +
                                out + "'";
    REQUIRE(std::system(command.c_str()) == 0);
    return contents(out);
  };
  const std::string coloured = on_terminal("unset NO_COLOR;");
  CHECK(contains(coloured, "\x1b[0;2mThe river"));
  CHECK(contains(coloured, "\x1b[0;35m"));
  const std::string plain = on_terminal("NO_COLOR=1");
  CHECK(contains(plain, "The river"));
  CHECK(plain.find('\x1b') == std::string::npos);
}

TEST_CASE("the comparison names every method, how it was timed, and that texts are equal", "[generate]") {
  const outcome result = run("--compare --max-tokens 6 --repeats 2 --prompt 'Once' --prompt 'The river'");
  CHECK(result.status == 0);
  hana::for_each(espalier::tree_policies, [&](const auto& part) {
    CHECK(contains(result.out, std::string("\n").append(part.name).append(" ")));
  });
  CHECK(contains(result.out, "All texts are equal to plain decoding's."));
  CHECK(contains(result.out, "median of 2 runs of each method, taking turns"));
  CHECK(contains(result.out, "[2 of 2]"));
  const outcome some = run("--compare --method chain --max-tokens 4 --repeats 1 --prompt 'Once'");
  CHECK(contains(some.out, "\nplain "));
  CHECK(contains(some.out, "\nchain "));
  CHECK_FALSE(contains(some.out, "\nfixed "));
}

TEST_CASE("trees are drawn in the terminal, as SVG and as DOT", "[generate]") {
  const std::string svg = scratch() + "/tree.svg";
  const std::string dot = scratch() + "/tree.dot";
  const outcome result = run("--prompt 'The river' --max-tokens 12 --method fixed --svg " + svg + " --dot " + dot +
                             " --show-tree --ascii");
  CHECK(result.status == 0);
  CHECK(contains(result.out, "Round 0: "));
  CHECK(contains(result.out, " drafted tokens accepted\n"));
  CHECK(contains(result.out, "> "));
  CHECK(contains(contents(svg), "<svg "));
  CHECK(contains(contents(svg), "fixed, round "));
  CHECK(contains(contents(dot), "digraph tree {"));
  run("--prompt 'The river' --max-tokens 12 --method fixed --round 1 --svg " + svg);
  CHECK(contains(contents(svg), "fixed, round 1"));
}

TEST_CASE("a text ends with its stop string", "[generate]") {
  const std::string whole = text_of(written("--prompt 'The river' --max-tokens 32"));
  REQUIRE(whole.size() > 12);
  std::size_t at = 5;
  while (contains(whole.substr(at, 3), "'"))  // which would end the shell's quotes
    ++at;
  const std::string stop = whole.substr(at, 3);
  const json object = written("--prompt 'The river' --max-tokens 32 --stop nowhere --stop '" + stop + "'");
  const std::string text = text_of(object);
  CHECK(object.at("texts").at(0).at("end") == "stop string");
  CHECK(contains(text, stop));
  CHECK(whole.compare(0, text.size(), text) == 0);
  CHECK(text.size() < whole.size());
}

TEST_CASE("at a temperature the seed decides, and nothing about how passes are run", "[generate]") {
  for (const std::string method :
       {"dynatree", "delayed --verifier khisti", "iid-paths --paths 3 --verifier specinfer"}) {
    const std::string arguments = "--prompt 'The river' --max-tokens 24 --temperature 1 --method " + method;
    INFO(arguments);
    const std::string one = text_of(written(arguments + " --seed 1"));
    CHECK(text_of(written(arguments + " --seed 1 --threads 1 --commit truncate --order heavy-path")) == one);
    CHECK(text_of(written(arguments + " --seed 2")) != one);
  }
}

TEST_CASE("at a temperature methods and verifiers are compared by speed, not by their texts", "[generate]") {
  const std::string arguments = "--compare --repeats 1 --prompt 'The river' --max-tokens 8 --temperature 1 ";
  const outcome all = run(arguments);
  CHECK(all.status == 0);
  CHECK(all.err == "");
  CHECK(contains(all.out, "same law"));
  CHECK(contains(all.out, "all are samples of one distribution, the target's"));
  const outcome chosen = run(arguments + "--json --method iid-paths --verifier specinfer,traversal");
  REQUIRE(chosen.status == 0);
  const json object = json::parse(chosen.out);
  CHECK(object.at("equal").is_null());
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const json& method : object.at("methods"))
    pairs.emplace_back(method.at("method"), method.at("verifier"));
  CHECK(pairs == std::vector<std::pair<std::string, std::string>>{
                     {"plain", "target-only"}, {"iid-paths", "specinfer"}, {"iid-paths", "traversal"}});
  const outcome fitting = run(arguments + "--verifier naive");
  CHECK(fitting.status == 0);
  CHECK(contains(fitting.out, "\nsampled-chain "));
  CHECK_FALSE(contains(fitting.out, "\niid-paths "));
}

TEST_CASE("a tree shows how often a token was drawn", "[generate]") {
  const outcome result =
      run("--prompt 'The river' --max-tokens 8 --temperature 1 --method iid-paths --paths 4 --length 2 "
          "--draft.temperature 0.01 --show-tree --ascii");
  CHECK(result.status == 0);
  CHECK(contains(result.out, " x4 "));
  CHECK(contains(result.out, " of 8 drafted tokens accepted\n"));
}

TEST_CASE("prompts come from a file, as texts or tokens", "[generate]") {
  const std::string path = scratch() + "/prompts.jsonl";
  { std::ofstream(path) << "\"The river\"\n\n{\"text\": \"Once\", \"domain\": \"tales\"}\n{\"tokens\": [1, 404]}\n"; }
  const json object = written("--max-tokens 4 --prompts " + path);
  REQUIRE(object.at("texts").size() == 3);
  CHECK(object.at("texts").at(0).at("text") == text_of(written("--max-tokens 4 --prompt 'The river'")));
  CHECK(object.at("texts").at(1).at("domain") == "tales");
  CHECK(object.at("texts").at(2).at("tokens").size() == 4);
  CHECK(object.at("statistics").at("tokens") == 12);
}
