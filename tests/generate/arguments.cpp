// SPDX-License-Identifier: BSL-1.0
// What the command line asks for.
#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/core/number_list.hpp"
#include "espalier/registry.hpp"
#include "models/self_draft.hpp"
#include "program.hpp"
#include "written.hpp"

namespace {

namespace hana = boost::hana;
using nlohmann::json;

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
  all("self", models::self_draft_options());
  hana::for_each(espalier::tree_policies, [&](const auto& part) { all(part.name, part.options); });
  hana::for_each(espalier::verifiers, [&](const auto& part) { all(part.name, part.options); });
}

}  // namespace

TEST_CASE("--help names every flag and every part, in lines that fit", "[generate][arguments]") {
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
  CHECK(contains(help.out, "drafted tokens of the first round, 1 to max-length [20]\n"));
  for (const char* name :
       {"--prompt ",    "--prompts ", "--model ",   "--max-tokens ", "--stop ",    "--method ",  "--verifier ",
        "--device ",    "--drafter ", "text ",      "--commit ",     "--threads ", "--compare ", "--repeats ",
        "--show-tree ", "--ascii ",   "--svg ",     "--dot ",        "--round ",   "--json ",    "--grammar ",
        "heavy-path",   "truncate",   "--weights ", "--arithmetic "}) {
    INFO(name);
    CHECK(contains(help.out, name));
  }
  std::istringstream lines(help.out);
  for (std::string line; std::getline(lines, line);) {
    INFO(line);
    CHECK(line.size() <= 100);
  }
}

TEST_CASE("every flag reaches its option, and JSON tells it", "[generate][arguments]") {
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
      } else if constexpr (std::is_enum_v<value_type>) {
        const std::string_view last = espalier::known_values<value_type>.back().name;
        arguments += last;
        expected[std::string(option.name)] = last;
      } else if constexpr (std::is_same_v<value_type, espalier::number_list>) {
        arguments += "0.25,0.125";
        expected[std::string(option.name)] = {0.25, 0.125};
      } else {
        arguments += std::to_string(static_cast<value_type>(option.low));
        expected[std::string(option.name)] = static_cast<value_type>(option.low);
      }
    });
    const json object = written(quickly() + arguments);
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

TEST_CASE("an option without its method's name is that of the methods used, unless they have their own",
          "[generate][arguments]") {
  const auto options_of = [](const std::string& arguments) {
    return written("--prompt x --max-tokens 2 " + arguments).at("options");
  };
  CHECK(options_of("--method iid-paths --paths 3 --length 1").at("iid-paths") == json{{"paths", 3}, {"length", 1}});
  CHECK(options_of("--length 1 --iid-paths.length 2 --method iid-paths").at("iid-paths").at("length") == 2);
  CHECK(options_of("--method iid-paths --verifier khisti --temperature 1 --window 2").at("khisti") ==
        json{{"window", 2}});
  CHECK_FALSE(options_of("--method iid-paths --temperature 1").contains("traversal"));
  CHECK(options_of("--history off --max-breadth 4").at("dynatree").at("history") == false);
  const json merged = options_of("--method dynatree --text-method chain --length 3 --budget 9");
  CHECK(merged.at("text_method") == "chain");
  CHECK(merged.at("chain") == json{{"length", 3}});
  CHECK(merged.at("dynatree").at("budget") == 9);
  const outcome compared =
      run("--compare --json --repeats 1 --prompt x --max-tokens 2 --method chain,delayed,fixed --length 2");
  REQUIRE(compared.status == 0);
  const json methods = json::parse(compared.out).at("methods");
  CHECK(methods.at(1).at("options").at("chain").at("length") == 2);
  CHECK(methods.at(2).at("options").at("delayed").at("length") == 2);
}

TEST_CASE("drawn trees are drawn as the target samples, unless flags say otherwise", "[generate][arguments]") {
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

TEST_CASE("what cannot be used is named in one sentence, with status 2", "[generate][arguments]") {
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
           {"--temprature 1", "There is no such argument: --temprature. The nearest one is --temperature."},
           {"--lenght=4", "There is no such argument: --lenght=4. The nearest one is --length."},
           {"--chain.lenght 4", "There is no such argument: --chain.lenght. The nearest one is --chain.length."},
           {"--prompt", "--prompt needs a value."},
           {"--prompt ''", "--prompt is empty"},
           {"--max-tokens -1", "--max-tokens must be a whole number, 0 and more, but is \"-1\"."},
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
           {"--verifier naive,block-verification --method sampled-chain",
            "--verifier names 2 verifiers, which goes with --compare"},
           {"--device abacus", "--device must be one of cpu, cuda, but is"},
           {"--arithmetic fuzzy", "--arithmetic must be one of exact, integer, but is"},
           {"--device cuda --weights q4-0", "--weights q4-0 does not run on --device cuda: f32 and bf16 do."},
           {"--device cuda --arithmetic integer", "--arithmetic integer does not run on --device cuda: exact does."},
           {"--drafter crystal-ball", "--drafter must be one of auto, model, eagle3, mtp, block, self, text, but is"},
           {"--drafter self", "--drafter self would draft with passes as dear as the target's: --self.window or "},
           {"--drafter self --arithmetic integer --self.arithmetic integer", "as dear as the target's"},
           {"--self.layers 3", "--self.layers goes with --drafter self, not with --drafter model."},
           {"--drafter self --self.layers 99", "option layers is 99, but must lie between 1 and 7."},
           {"--drafter self --self.layers 3 --draft x", "--draft does not go with it."},
           {"--drafter self --self.layers 3 --block x", "--block does not go with it."},
           {"--drafter self --self.layers 3 --costs x", "--costs has no seconds of the passes of --drafter self."},
           {"--drafter self --self.window 9999", "the model has 1024: lower window, block or scratch."},
           {"--drafter text --draft.top-p 0.5",
            "--draft.top-p shapes the probabilities of a draft model, and --drafter text has none."},
           {"--drafter block --model " + without_block,
            "but " + without_block + " has none beside it; --block names one."},
           {"--paths 3", "--paths is an option of iid-paths, delayed, neural-delayed, not of --method dynatree."},
           {"--window 3", "--window is an option of khisti, not of --verifier greedy."},
           {"--length 0 --method chain", "--length must be a whole number, 1 to 1024, but is \"0\"."},
           {"--length 65 --method delayed", "--length must be a whole number, 0 to 64, but is \"65\"."},
           {"--sampled-chain.length 99", "--sampled-chain.length must be a whole number, 0 to 64, but is \"99\"."},
           {"--length", "--length needs a value."},
           {"--paths --method iid-paths", "--paths needs a value."},
           {"one --two three", "There is no such argument: one."},
           {"--dynatree.base-depth 99", "--dynatree.base-depth must be a whole number, 1 to max-depth, but is \"99\"."},
           {"--dynatree.base-depth 9 --dynatree.max-depth 8", "--method dynatree: option base_depth is 9"},
           {"--dynatree.history perhaps", "--dynatree.history must be on or off"},
           {"--round 3", "--round chooses"},
           {"--prompt x --max-tokens 2 --svg " + scratch() + "/x.svg --round 50", "--round 50 cannot be drawn"},
           {"--prompt x --max-tokens 2 --svg /nonexistent/x.svg", "/nonexistent/x.svg cannot be written."},
           {"--compare --show-tree", "do not go with --compare"},
           {"--json --show-tree", "--json writes no trees"},
           {"--prompt x --prompts y", "--prompt and --prompts do not go together."},
           {"--stop ''", "--stop must not be empty."},
           {"--model " + no_models, "there is no " + no_models + ", where a model is looked for."},
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

TEST_CASE("a program that was built without CUDA says so where it is asked for", "[generate][arguments]") {
  for (const char* arguments : {"--device cuda", "--device cuda --regex '[a-z]+'"}) {
    const outcome result = run(arguments, "", GENERATE_ON_HOST);
    CHECK(result.status == 2);
    CHECK(contains(result.err, "this one was built without CUDA."));
  }
}
