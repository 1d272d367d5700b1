// SPDX-License-Identifier: BSL-1.0
// The program as its users meet it, with the bundled models.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "generate/program.hpp"
#include "generate/tiny_gguf.hpp"
#include "nde/trace_file.hpp"

namespace {

namespace fs = std::filesystem;

std::string prompts_file() {
  const std::string path = scratch() + "/prompts.jsonl";
  std::ofstream(path) << R"({"domain": "one", "text": "Once upon a time"})"
                      << "\n"
                      << R"({"domain": "two", "tokens": [1, 500, 600, 700]})"
                      << "\n";
  return path;
}

// A small collection into a folder of the tests.
outcome collect(const std::string& folder, const std::string& arguments = "") {
  return run("collect --prompts '" + prompts_file() + "' --out '" + scratch() + "/" + folder +
             "' --tokens 16 --spacing 8 --samples 1 --samplings 0.8,1:0.9 " + arguments);
}

std::string trace_path(const std::string& folder, int i) {
  return scratch() + "/" + folder + "/trace-0000" + std::to_string(i) + ".safetensors";
}

void cut_short(const std::string& path) {
  fs::resize_file(path, fs::file_size(path) / 2);
}

}  // namespace

TEST_CASE("A collection goes on where it stopped", "[nde]") {
  fs::remove_all(scratch() + "/traces");
  const outcome first = collect("traces");
  INFO(first.err);
  REQUIRE(first.status == 0);
  CHECK(contains(first.out, "0 traces were there, 2 with 4 roots were collected"));
  CHECK(contains(first.err, "prompt 2 of 2: two"));
  CHECK(contains(first.err, "minutes left"));
  const std::string one = contents(trace_path("traces", 0)), two = contents(trace_path("traces", 1));

  SECTION("what is there is left") {
    const outcome again = collect("traces");
    REQUIRE(again.status == 0);
    CHECK(contains(again.out, "2 traces were there, 0 with 0 roots were collected"));
    CHECK(contents(trace_path("traces", 0)) == one);
  }
  SECTION("what is missing is made, the same as before") {
    fs::remove(trace_path("traces", 0));
    const outcome again = collect("traces");
    REQUIRE(again.status == 0);
    CHECK(contains(again.out, "1 traces were there, 1 with 2 roots were collected"));
    CHECK(contents(trace_path("traces", 0)) == one);
  }
  SECTION("what was cut short is reported and made anew") {
    cut_short(trace_path("traces", 1));
    const outcome again = collect("traces");
    REQUIRE(again.status == 0);
    CHECK(contains(again.err, trace_path("traces", 1)));
    CHECK(contains(again.err, "is collected anew"));
    CHECK(contents(trace_path("traces", 1)) == two);
  }
  SECTION("several processes share it, with any number of threads") {
    CHECK(collect("shared", "--parts 2 --part 1 --threads 1").status == 0);
    CHECK_FALSE(fs::exists(trace_path("shared", 0)));
    CHECK(contents(trace_path("shared", 1)) == two);
  }
  SECTION("other arguments do not go on with it") {
    const outcome other = collect("traces", "--verifiers spectr");
    CHECK(other.status == 2);
    CHECK(contains(other.err, trace_path("traces", 0)));
    CHECK(contains(other.err, "verifiers \"target-only,"));
    CHECK(contents(trace_path("traces", 0)) == one);
  }
}

TEST_CASE("A trace holds what selectors learn from", "[nde]") {
  REQUIRE(collect("held", "--verifiers specinfer,khisti --roots 1 --count 1").status == 0);
  CHECK_FALSE(fs::exists(trace_path("held", 1)));
  nde::trace t = nde::read_trace(trace_path("held", 0));
  REQUIRE(t.roots() == 1);
  CHECK(t.tensors.at("target_hidden").shape[1] == 384);
  CHECK(t.tensors.at("draft_hidden_prev").shape[1] == 128);
  CHECK(t.tensors.at("draft_hidden_prev").values != t.tensors.at("draft_hidden_root").values);
  const auto& scalars = t.tensors.at("scalars").values;
  CHECK(scalars[6] > 8);  // tokens: the prompt, and 8 written
  CHECK(scalars[7] == 0.8F);
  CHECK(scalars[8] == 1.0F);
  for (std::size_t i = 0; i < 6; ++i)
    CHECK(scalars[i] >= 0);
  const auto& efficiency = t.tensors.at("efficiency").values;
  for (std::size_t i = 0; i < efficiency.size(); ++i) {
    const auto action = espalier::delayed_action::at(static_cast<std::int32_t>(i % nde::n_actions));
    CHECK(efficiency[i] >= 1);
    CHECK(efficiency[i] <= static_cast<float>(1 + action.trunk + action.length) + 1e-4F);
    if (action.trunk + action.length == 0) CHECK(efficiency[i] == 1);
  }
  CHECK(t.settings["verifiers"] == "specinfer,khisti");
  CHECK(t.settings["sampling"] == "0.8");
  CHECK(t.settings["domain"] == "one");
  CHECK(contains(t.settings["target"], "llama 7x384, 4096 tokens, "));
}

TEST_CASE("What is found at a root does not depend on those before it", "[nde]") {
  const auto collected = [](const std::string& spacing) {
    const std::string folder = scratch() + "/spacing-" + spacing;
    const outcome result = run("collect --prompts '" + prompts_file() + "' --out '" + folder +
                               "' --count 1 --tokens 4 --samples 1 --samplings 1 --spacing " + spacing);
    INFO(result.err);
    REQUIRE(result.status == 0);
    return nde::read_trace(folder + "/trace-00000.safetensors");
  };
  const nde::trace every = collected("1"), last = collected("4");
  REQUIRE(every.roots() == 4);
  REQUIRE(last.roots() == 1);
  for (const auto& [name, tensor] : last.tensors) {
    INFO(name);
    const auto& all = every.tensors.at(name).values;
    CHECK(std::equal(tensor.values.rbegin(), tensor.values.rend(), all.rbegin()));
  }
}

TEST_CASE("Traces are shown, and damaged ones named", "[nde]") {
  REQUIRE(collect("shown").status == 0);
  const std::string folder = "'" + scratch() + "/shown'";
  const outcome whole = run("inspect " + folder);
  CHECK(whole.status == 0);
  CHECK(whole.err.empty());
  for (const char* what : {"2 traces, 4 roots", "llama 7x384, 4096 tokens, ", "llama 2x128, 4096 tokens, ",
                           "one 2, two 2", "0.8 4", "target-only", "khisti", "4, 8, 8"})
    CHECK(contains(whole.out, what));
  cut_short(trace_path("shown", 0));
  const outcome cut = run("inspect " + folder);
  CHECK(cut.status == 1);
  CHECK(contains(cut.err, trace_path("shown", 0)));
  CHECK(contains(cut.err, "1 of the files is damaged"));
  CHECK(contains(cut.out, "1 traces, 2 roots"));
}

TEST_CASE("Costs of passes are measured and kept", "[nde]") {
  const std::string path = scratch() + "/costs.json";
  const outcome result = run("costs --out '" + path + "' --seconds 0 --rows 8 --threads 2");
  INFO(result.err);
  REQUIRE(result.status == 0);
  for (const char* what : {"2 threads", "llama 7x384, 4096 tokens, ", "milliseconds after"})
    CHECK(contains(result.out, what));
  CHECK(contains(result.err, "100 %"));
  const std::string kept = contents(path);
  CHECK(contains(kept, "llama 2x128, 4096 tokens, "));
  const auto json = nlohmann::json::parse(kept, nullptr, false);
  REQUIRE(json.is_object());
  const std::string source = json.value("source", "");
  CHECK(contains(source, "measured on 20"));
  CHECK(contains(source, "by: nde costs --sampling 1 --rows 8 --seconds 0 --threads 2"));
}

TEST_CASE("Arguments that make no sense are refused in a sentence", "[nde]") {
  const auto refused = [](const outcome& result, std::string_view what) {
    INFO(result.err);
    CHECK(result.status == 2);
    CHECK(contains(result.err, what));
  };
  refused(run(""), "subcommand");
  refused(collect("none", "--verifiers traversal"), "there is no verifier traversal");
  refused(run("collect --prompts '" + prompts_file() + "' --out none --samplings warm"), "\"warm\" is no sampling");
  refused(run("collect --prompts '" + prompts_file() + "' --out none --samplings=-1"), "option temperature");
  refused(run("collect --prompts '" + prompts_file() + "' --out none --tokens 8"), "option spacing");
  refused(collect("none", "--part 2 --parts 2"), "option part");
  refused(run("collect --prompts '" + prompts_file() + "' --out none --tokens 2000"), "do not fit the models' context");
  refused(collect("none", "--model '" + scratch() + "/nowhere'"), "there is no " + scratch() + "/nowhere");
  refused(run("inspect '" + scratch() + "/nothing.safetensors'"), "there is no ");
  fs::create_directories(scratch() + "/empty");
  refused(run("inspect '" + scratch() + "/empty'"), "holds no trace");
}

TEST_CASE("Traces are collected for a verifier of one's own, too", "[nde]") {
  fs::remove_all(scratch() + "/own");
  const outcome made = run("collect --prompts '" + prompts_file() + "' --out '" + scratch() +
                               "/own' --tokens 8 --spacing 8 --samples 1 --samplings 1 --count 1 --verifiers "
                               "best-ratio,specinfer",
                           "", NDE_OWN_PARTS);
  INFO(made.err);
  REQUIRE(made.status == 0);
  const nde::trace t = nde::read_trace(trace_path("own", 0));
  CHECK(t.settings.at("verifiers") == "best-ratio,specinfer");
  // Both test a single draw alike.
  const std::vector<float>& efficiency = t.tensors.at("efficiency").values;
  for (std::size_t action = 0; action < 81; ++action)
    CHECK(efficiency[action] == Approx(efficiency[nde::n_actions + action]));
  const outcome none = run("collect --prompts '" + prompts_file() + "' --out x --verifiers naive", "", NDE_OWN_PARTS);
  CHECK(none.status == 2);
  CHECK(contains(none.err, "there is no verifier naive to collect traces for; there are target-only, "));
  CHECK(contains(none.err, "khisti, best-ratio."));
}

TEST_CASE("replay counts the tokens a round of texts by their kinds", "[nde]") {
  const std::string path = scratch() + "/texts.jsonl";
  std::ofstream(path)
      << R"({"kind": "copied", "prompt": "The fox runs over the hill and into the wood. The fox", "text": " runs over the hill and into the wood."})"
      << "\n\n"
      << R"({"kind": "new", "prompt": "One two", "text": " three four five six seven"})"
      << "\n";
  const outcome counted = run("replay --texts '" + path + "' --budget 8");
  INFO(counted.out << counted.err);
  REQUIRE(counted.status == 0);
  const auto figures = [&](const std::string& kind) {
    std::istringstream line(counted.out.substr(counted.out.find("\n" + kind)));
    std::string name;
    double texts = 0, tokens = 0, look_up = 0, path_of_counts = 0, tree = 0, memory = 0;
    line >> name >> texts >> tokens >> look_up >> path_of_counts >> tree >> memory;
    CHECK(texts == 1);
    CHECK(tokens >= 5);
    CHECK(memory == tree);  // nothing was written before
    return std::pair(tree, look_up);
  };
  CHECK(figures("copied").first > 2);
  CHECK(figures("copied").second > 2);
  CHECK(figures("new").first >= 1);
  const auto says = [&](const std::string& text, const std::string& why) {
    std::ofstream(path) << text;
    const outcome refused = run("replay --texts '" + path + "'");
    CHECK(refused.status == 2);
    CHECK(contains(refused.err, why));
  };
  says(R"({"kind": "a", "prompt": "b"})", ", line 1 has no \"text\"");
  says(R"({"kind": "a", "prompt": "", "text": "b"})", ", line 1 has no \"prompt\"");
  says("[]", ", line 1 has no");
  says("\n", "holds no text");
  CHECK(contains(run("replay --texts '" + path + ".none'").err, "cannot be opened"));
}

TEST_CASE("head-tokens lists the tokens that texts have most often, and a draft of these alone drafts them", "[nde]") {
  const std::string texts = scratch() + "/counted.jsonl", list = scratch() + "/head_tokens.json";
  std::ofstream(texts) << R"({"tokens": [9, 9, 9, 7, 7, 300]})"
                       << "\n"
                       << R"({"tokens": [7, 300, 4, 9]})"
                       << "\n";
  const std::string command =
      "head-tokens --tokenizer '" ESPALIER_TEST_MODELS "' --texts '" + texts + "' --out '" + list + "' --count ";
  for (const auto& [count, listed, said] :
       {std::tuple("2", "[7,9]", "2 of 4096 tokens, which are 70.00 % of the 10 in these texts"),
        {"9", "[4,7,9,300]", "4 of 4096 tokens, which are 100.00 % of the 10 in these texts"}}) {
    const outcome counted = run(command + count);
    INFO(counted.err);
    REQUIRE(counted.status == 0);
    CHECK(contains(counted.out, said));
    CHECK(contains(counted.err, "4 different tokens, fewer than the 9 asked for") == (count == std::string("9")));
    std::ifstream file(list);
    std::string text;
    std::getline(file, text);
    CHECK(text == std::string("{\"head_tokens\":") + listed + "}");
  }
  const outcome rated =
      run("rates --prompts '" + prompts_file() + "' --tokens 8 --draws 1 --head-tokens '" + list + "'");
  INFO(rated.err);
  CHECK(rated.status == 0);
  std::ofstream(texts) << R"({"tokens": [4096]})";
  CHECK(contains(run(command + "2").err, ", line 1 has token 4096, but the vocabulary of "));
  CHECK(contains(run("head-tokens --tokenizer '" ESPALIER_TEST_MODELS "' --texts '" + texts + ".none' --out x").err,
                 "cannot be opened"));
}

TEST_CASE("write makes a text after each prompt, and goes on where it stopped", "[nde]") {
  const std::string path = scratch() + "/written.jsonl", prompts = scratch() + "/six_prompts.jsonl";
  std::ofstream file(prompts);
  for (int i = 0; i < 6; ++i)
    file << R"({"domain": "one", "tokens": [1, 500, )" << 600 + i << "]}\n";
  file.close();
  fs::remove(path);
  const auto write = [&](const std::string& more, const std::string& samplings = "0,1") {
    return run("write --prompts '" + prompts + "' --out '" + path + "' --tokens 12 --samplings " + samplings + " " +
               more);
  };
  const outcome all = write("--together 4");
  INFO(all.err);
  REQUIRE(all.status == 0);
  CHECK(contains(all.out, "0 texts were there, 6 with "));
  CHECK(contains(all.err, "text 6 of 6: "));
  const std::string together = contents(path);
  CHECK(std::count(together.begin(), together.end(), '\n') == 6);
  std::istringstream lines(together);
  std::string line;
  for (int i = 0; std::getline(lines, line); ++i) {
    const nlohmann::json text = nlohmann::json::parse(line);
    CHECK(text["prompt"] == 3);
    CHECK(contains(text["target"].get<std::string>(), "llama 7x384, 4096 tokens, "));
    CHECK(text["sampling"] == (i % 2 == 0 ? "0" : "1"));
    CHECK(text["tokens"][2] == 600 + i);
    CHECK(text["tokens"].size() > 3);
    CHECK(text["tokens"].size() <= 15);
  }

  SECTION("one at a time writes the same, as does going on after a line that was cut short") {
    fs::remove(path);
    REQUIRE(write("--together 1").status == 0);
    CHECK(contents(path) == together);
    cut_short(path);
    const outcome rest = write("--together 3 --threads 1");
    CHECK(contains(rest.out, "2 texts were there") != contains(rest.out, "3 texts were there"));
    CHECK(contents(path) == together);
    CHECK(contains(write("").out, "6 texts were there, 0 with 0 tokens"));
  }
  SECTION("a file of other texts is left as it is") {
    for (const std::string other : {"--seed 5", "--arithmetic integer"})
      CHECK(contains(write(other).err, path + ", line 1 is not what these arguments write there"));
    CHECK(contains(write("", "0.5").err, path + ", line 1 is not what "));
    CHECK(contains(write("--count 4").err, path + " has more texts than the 4 that are asked for"));
    CHECK(contents(path) == together);
    for (const std::string other : {"{\"tokens\": 3}\n", "not whole"}) {
      std::ofstream(path) << other;
      CHECK(contains(write("").err, path + ", line 1 is not what "));
      CHECK(contents(path) == other);
    }
    const std::string in = "write --prompts '" + prompts + "' --out ";
    CHECK(contains(run(in + "/none/written").err, "/none/written cannot be written"));
    CHECK(contains(run(in + "'" + scratch() + "'").err, scratch() + " is no file, into which"));
    std::ofstream(prompts, std::ios::app) << R"({"tokens": [1], "temperature": 1e39})"
                                          << "\n";
    CHECK(contains(write("").err, prompts + ", line 7: the temperature is inf, but must lie between 0 and 100."));
  }
}

TEST_CASE("A text is a user's message to a model that chats", "[nde]") {
  const std::string path = scratch() + "/chat.jsonl", prompts = scratch() + "/message.jsonl";
  std::ofstream(prompts) << R"({"text": "ab"})"
                         << "\n";
  fs::remove(path);
  REQUIRE(run("write --model '" + tiny_gguf().write("chat.gguf") + "' --prompts '" + prompts + "' --out '" + path +
              "' --tokens 2")
              .status == 0);
  const nlohmann::json text = nlohmann::json::parse(contents(path));
  CHECK(text["prompt"] == std::string("{user.ab}.{assistant.").size());  // braces are one token each
  CHECK(text["tokens"][0] == 256);
}

TEST_CASE("rates of verifiers lie below the highest there can be, and rise with the draws", "[nde]") {
  const std::string command = "rates --prompts '" + prompts_file() + "' --tokens 24 --samplings 0.8 ";
  const outcome found = run(command + "--spacing 4 --draws 1,2,4");
  INFO(found.out << found.err);
  REQUIRE(found.status == 0);
  CHECK(contains(found.out, "sampling 0.8: mean acceptance rates at 12 places of 2 texts"));
  CHECK(contains(found.out, "draws  target-only   naive-tree       spectr    specinfer       khisti      optimal"));
  std::istringstream lines(found.out);
  std::string line;
  std::getline(lines, line), std::getline(lines, line);
  std::vector<double> before(6, 0.0);
  for (const int k : {1, 2, 4}) {
    std::vector<double> rates(6);
    int draws = 0;
    lines >> draws;
    for (double& rate : rates)
      lines >> rate;
    CHECK(draws == k);
    for (std::size_t v = 0; v < rates.size(); ++v) {
      // The rate of khisti is a lower bound beyond one draw.
      if (v != 4) CHECK(rates[v] > before[v]);
      CHECK(rates[v] <= rates.back() + 1e-4);
      // With one draw each rule is the best one, but for the one that does not look at the draft's row.
      if (k == 1 && v > 0) CHECK(rates[v] == Approx(rates.back()).margin(1e-4));
    }
    before = rates;
  }
  // By rank: as the option of sequoia takes them.
  std::getline(lines, line), std::getline(lines, line);
  CHECK(contains(line, "(--sequoia.acceptance):"));
  double sum = 0, last = 1;
  int ranks = 0;
  for (std::string rate; std::getline(lines >> std::ws, rate, ',');) {
    CHECK(std::stod(rate) <= last);
    sum += last = std::stod(rate), ++ranks;
  }
  CHECK(ranks == 16);
  // The first draw is accepted about as often as the rate of one draw says, 12 places by 16 trials.
  CHECK(sum > before[0] * 0.9);
  CHECK(sum < 1.02);
  CHECK(run(command + "--spacing 4 --draws 1,2,4 --threads 1").out == found.out);
  CHECK(contains(run(command + "--spacing 25").err, "option spacing"));
  CHECK(run(command + "--draws 0").status == 2);
}
