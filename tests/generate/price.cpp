// SPDX-License-Identifier: BSL-1.0
// Seconds that are counted at the prices of a table: what they are sums of, what they leave as it is, and which tables
// are refused.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/cost/cost_curve.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/model/files/cost_file.hpp"
#include "program.hpp"
#include "written.hpp"

namespace {

using espalier::cost_curve;
using espalier::cost_model;
using nlohmann::json;

// A table by which each row of the target costs a second, each pass of the draft a quarter, and a round that drafts
// an eighth more.
cost_model made_up_prices() {
  return {.hardware = "a clock of sand",
          .target = "large",
          .draft = "small",
          .draft_pass = cost_curve::linear(0.25, 0),
          .target_pass = cost_curve::linear(1, 1),
          .opening = 0.125};
}

std::string saved(const cost_model& prices, const std::string& source = "reckoned for a test") {
  const std::string path = scratch() + "/prices.json";
  espalier::save_costs(prices, path, source);
  return path;
}

std::string priced(const std::string& path) {
  return "--threads 1 --price '" + path + "' ";
}

// Four tokens, that of the beginning included.
std::string four_tokens() {
  const std::string path = scratch() + "/four.jsonl";
  std::ofstream(path) << R"({"tokens": [1, 300, 301, 302]})"
                      << "\n";
  return "--prompts '" + path + "' --max-tokens 20 ";
}

double number(const json& statistics, const char* key) {
  return statistics.at(key).get<double>();
}

// Checks that a program with these arguments ends with a sentence that has this piece.
void check_refused(const std::string& arguments, const std::string& piece) {
  const outcome result = run(arguments);
  INFO(arguments << "\n" << result.err);
  CHECK(result.status == 2);
  CHECK(contains(result.err, piece));
}

}  // namespace

TEST_CASE("priced seconds are sums of the table's", "[generate][price]") {
  const std::string asked = priced(saved(made_up_prices())) + four_tokens();
  for (const char* method : {"plain", "chain", "best-first"}) {
    INFO(method);
    const json s = written(asked + "--method " + method).at("statistics");
    const json seconds = s.at("seconds");
    // The prompt, but for its last token, and then each round's root and what was drafted from it.
    CHECK(number(seconds, "target_forward") == 3 + number(s, "rounds") + number(s, "drafted"));
    for (const char* other : {"compile", "verify", "commit", "on_device"})
      CHECK(number(seconds, other) == 0);
    const double passes = number(seconds, "draft_forward") / 0.25;
    CHECK(passes == static_cast<double>(static_cast<int>(passes)));
    const double drafting_rounds = number(seconds, "grow") / 0.125;
    if (std::string(method) == "plain") {
      CHECK(passes == 0);
      CHECK(drafting_rounds == 0);
    } else {
      CHECK(drafting_rounds >= 1);
      CHECK(drafting_rounds <= number(s, "rounds"));
      CHECK(passes >= drafting_rounds);
    }
    // A chain asks once for each token; the draft may read the prompt in a pass of its own.
    if (std::string(method) == "chain") {
      CHECK(passes >= number(s, "drafted"));
      CHECK(passes <= number(s, "drafted") + 1);
    }
    const double total = number(seconds, "target_forward") + number(seconds, "draft_forward") + number(seconds, "grow");
    CHECK(number(s, "tokens_per_second") == Approx(number(s, "tokens") / total));
  }
  // A pass of a block drafts all depths at once; a look-up needs none.
  const json block = written(asked + "--drafter block --method best-first").at("statistics");
  CHECK(number(block.at("seconds"), "draft_forward") / 0.25 <= number(block, "rounds"));
  CHECK(number(block.at("seconds"), "draft_forward") > 0);
  const json found = written(asked + "--drafter text --method chain").at("statistics");
  CHECK(number(found.at("seconds"), "draft_forward") == 0);
}

TEST_CASE("texts are the same with prices and without", "[generate][price]") {
  const std::string table = priced(saved(made_up_prices()));
  const std::string prompt = "--threads 1 --prompt 'The river' --max-tokens 16 ";
  const std::string expected = text_of(written(prompt + "--method plain"));
  for (const char* method : {"plain", "dynatree", "cost-aware"})
    CHECK(text_of(written(table + prompt + "--method " + method)) == expected);
  const std::string drawn = prompt + "--temperature 0.8 --seed 5 --method sampled-chain";
  CHECK(text_of(written(table + drawn)) == text_of(written(drawn)));
  const outcome compared = run(table + prompt + "--compare --repeats 1 --json --method chain,fixed,cost-aware");
  REQUIRE(compared.status == 0);
  CHECK(json::parse(compared.out).at("equal") == true);
}

TEST_CASE("all output says whose seconds are counted", "[generate][price]") {
  const std::string path = saved(made_up_prices());
  const std::string asked = priced(path) + "--prompt 'Once' --max-tokens 4 ";
  const json object = written(asked);
  CHECK(object.at("price") == json({{"file", path},
                                    {"hardware", "a clock of sand"},
                                    {"target", "large"},
                                    {"draft", "small"},
                                    {"source", "reckoned for a test"}}));
  CHECK(json::parse(run(asked + "--compare --repeats 1 --method chain --json").out).at("price") == object.at("price"));
  for (const char* more : {"", "--compare --repeats 1 --method chain"}) {
    const outcome shown = run(asked + more);
    CHECK(contains(
        shown.out,
        "Seconds are not this machine's: passes are counted at the prices of " + path +
            ", for large with small as the draft, whatever drafts, on a clock of sand (reckoned for a test)."));
  }
  CHECK_FALSE(contains(run("--threads 1 --prompt 'Once' --max-tokens 4 --method chain").out, "not this machine's"));
}

TEST_CASE("cost-aware trees are as wide as the prices allow", "[generate][price]") {
  const auto drafted = [](double row) {
    cost_model prices = made_up_prices();
    prices.target_pass = cost_curve::linear(1, row);
    prices.draft_pass = cost_curve::linear(0.02, 0);
    prices.opening = 0;
    return number(
        written(priced(saved(prices)) + "--prompt 'The river' --max-tokens 48 --method cost-aware").at("statistics"),
        "drafted_per_round");
  };
  CHECK(drafted(0.001) > 16);
  CHECK(drafted(0.9) < 2);
}

TEST_CASE("tables of prices that do not fit are refused", "[generate][price]") {
  const std::string prompt = "--prompt 'Once' --max-tokens 2 ";
  const auto check_table = [&](const cost_model& prices, const std::string& source, const std::string& piece) {
    check_refused(prompt + priced(saved(prices, source)), piece);
  };
  check_table(made_up_prices(), "", "is no table of prices: \"source\" must say how its seconds came about");
  cost_model nameless = made_up_prices();
  nameless.hardware.clear();
  check_table(nameless, "guessed", "\"hardware\" must say for which machine they are");
  cost_model free = made_up_prices();
  free.target_pass = cost_curve::linear(0, 1);
  check_table(free, "guessed", "a pass of the target over one row costs 0 seconds");
  check_refused(prompt + "--price /nowhere/prices.json", "/nowhere/prices.json cannot be opened");
  const std::string broken = scratch() + "/broken.json";
  std::ofstream(broken) << "{\"format\": \"espalier-costs 1\"";
  check_refused(prompt + priced(broken), "is not a JSON object");

  const std::string path = saved(made_up_prices());
  check_refused(prompt + priced(path) + "--costs '" + path + "'", "--costs does not go with it");
  const std::string alone = scratch() + "/alone.json";
  espalier::save_costs(made_up_prices().without_draft(), alone, "guessed");
  check_refused(prompt + priced(alone) + "--method chain", "has no prices of a draft");
  CHECK(run(prompt + priced(alone) + "--method plain").status == 0);
  CHECK(run(prompt + priced(alone) + "--drafter text").status == 0);
}

TEST_CASE("the tables of prices that are shipped are read", "[generate][price]") {
  int n = 0;
  for (const auto& file : std::filesystem::directory_iterator(GENERATE_MODELS "/../../bench/prices")) {
    if (file.path().extension() != ".json") continue;
    ++n;
    INFO(file.path());
    const json object = written(priced(file.path().string()) + "--prompt 'Once' --max-tokens 3 --method chain");
    CHECK(object.at("price").at("source").get<std::string>().size() > 20);
    CHECK(number(object.at("statistics"), "tokens_per_second") > 0);
  }
  CHECK(n >= 4);
}
