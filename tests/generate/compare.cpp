// SPDX-License-Identifier: BSL-1.0
// What the comparison of methods says.
#include <boost/hana/for_each.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/cost/hardware_name.hpp"
#include "espalier/model/files/cost_file.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "espalier/registry.hpp"
#include "program.hpp"
#include "tiny_hybrid.hpp"
#include "written.hpp"

namespace {

namespace hana = boost::hana;
using nlohmann::json;

}  // namespace

TEST_CASE("all methods, orders and commit modes write plain decoding's text", "[generate][compare]") {
  const std::string prompt = quickly() + "--prompt 'Question: How many legs have 3 dogs?' --max-tokens 24 ";
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
  CHECK(text_of(written(prompt + "--threads 2")) == expected);
}

TEST_CASE("every method writes plain decoding's text from every drafter", "[generate][compare]") {
  const std::string prompt = quickly() + "--prompt 'Question: How many legs have 3 dogs?' --max-tokens 24 ";
  const std::string expected = text_of(written(prompt + "--method plain"));
  for (const char* drafter : {"block", "text"}) {
    INFO(drafter);
    const outcome compared = run(prompt + "--compare --repeats 1 --json --drafter " + drafter);
    REQUIRE(compared.status == 0);
    const json object = json::parse(compared.out);
    CHECK(object.at("equal") == true);
    CHECK(object.at("methods").size() >= 16);
    CHECK(object.at("methods").at(1).at("options").at("drafter") == drafter);
    CHECK(object.at("methods").at(1).at("texts").at(0).at("text") == expected);
    CHECK(object.at("methods").at(1).at("statistics").at("accepted") > 0);
  }
  CHECK(written(prompt + "--drafter block").at("method") == "best-first");
  CHECK(written(prompt + "--drafter text").at("method") == "cost-aware");
  // Drawn trees over a block, at a temperature; and a block whose probabilities flags have shaped.
  CHECK(written(prompt + "--drafter block --method delayed --temperature 1").at("verifier") == "traversal");
  CHECK(text_of(written(prompt + "--drafter block --draft.top-k 3")) == expected);
}

TEST_CASE("every method writes plain decoding's text of a hybrid, whatever drafts", "[generate][compare]") {
  const std::string target = scratch() + "/hybrid", other = scratch() + "/other_hybrid";
  tiny_hybrid{}.write(target), tiny_hybrid{.noise = 0.1F}.write(other);
  const std::string prompt = "--threads 1 --prompt 'abababababab' --max-tokens 24 --model '" + target + "' ";
  const std::string expected = text_of(written(prompt + "--method plain"));
  for (const std::string& draft : {other, target, std::string()}) {
    espalier::cost_model costs = espalier::load_costs(GENERATE_MODELS "/selector/costs.json");
    costs.hardware = espalier::hardware_name(1);
    costs.target = espalier::model_identity(target);
    costs.draft = draft.empty() ? "" : espalier::model_identity(draft);
    espalier::save_costs(costs, scratch() + "/hybrid_costs.json");
    const std::string drafts = draft.empty() ? "--drafter text" : "--draft '" + draft + "'";
    for (const char* commit : {"compact", "truncate"}) {
      INFO(drafts << " " << commit);
      const outcome compared = run(prompt + "--compare --repeats 1 --json --costs '" + scratch() +
                                   "/hybrid_costs.json' --commit " + commit + " " + drafts);
      INFO(compared.err);
      REQUIRE(compared.status == 0);
      const json object = json::parse(compared.out);
      CHECK(object.at("equal") == true);
      CHECK(object.at("methods").size() >= 18);
      int n_accepted = 0;
      for (const json& method : object.at("methods")) {
        CHECK(method.at("texts").at(0).at("text") == expected);
        n_accepted += method.at("statistics").at("accepted").get<int>();
      }
      CHECK((n_accepted > 0 || draft.empty()));
    }
  }
  // Alone, its draft reads fewer rows in a pass than it holds of a tree.
  CHECK(text_of(written(prompt + "--method best-first --draft '" + other + "'")) == expected);
}

TEST_CASE("the comparison names every method, how it was timed, and that texts are equal", "[generate][compare]") {
  const outcome result = run(quickly() + "--compare --max-tokens 6 --repeats 2 --prompt 'Once' --prompt 'The river'");
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

TEST_CASE("at a temperature methods and verifiers are compared by speed, not by their texts", "[generate][compare]") {
  const std::string arguments =
      quickly() + "--compare --repeats 1 --prompt 'The river' --max-tokens 8 --temperature 1 ";
  const outcome all = run(arguments);
  CHECK(all.status == 0);
  CHECK(all.err == "");
  CHECK(contains(all.out, "same distribution"));
  CHECK(contains(all.out, "those of the same distribution are samples of the target's, and"));
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

TEST_CASE("a selector beside the draft chooses where it was trained for the models", "[generate]") {
  namespace fs = std::filesystem;
  const fs::path models = fs::absolute(GENERATE_MODELS), scratched = fs::absolute(scratch()) / "selectors";
  // The target alone, and drafts with and without a selector beside them.
  fs::remove_all(scratched);
  for (const char* folder : {"alone", "bare", "wrong"})
    fs::create_directories(scratched / folder);
  fs::create_directory_symlink(models / "target", scratched / "alone" / "target");
  fs::create_symlink(models / "tokenizer.model", scratched / "alone" / "tokenizer.model");
  fs::create_directory_symlink(models / "draft", scratched / "bare" / "draft");
  fs::create_directory_symlink(models / "target", scratched / "wrong" / "draft");
  fs::create_directory_symlink(models / "selector", scratched / "wrong" / "selector");
  const std::string asked =
      "--threads 1 --method neural-delayed --verifier specinfer --temperature 1 --seed 3 --max-tokens 40 --prompt 'The "
      "river' ";
  const auto drafted = [&](const fs::path& model, const fs::path& draft, const std::string& more = "") {
    // Costs of these models by name: what is not measured is the same in each run.
    espalier::cost_model costs = espalier::load_costs(GENERATE_MODELS "/selector/costs.json");
    costs.hardware = espalier::hardware_name(1);
    costs.draft = espalier::model_identity(draft.string());
    espalier::save_costs(costs, (scratched / "costs.json").string());
    return written(asked + "--costs '" + (scratched / "costs.json").string() + "' --model '" + model.string() +
                   "' --draft '" + draft.string() + "' " + more)
        .at("statistics")
        .at("drafted")
        .get<int>();
  };
  const int chosen = drafted(models, models / "draft"),
            as_options_say = drafted(scratched / "alone", scratched / "bare/draft");
  CHECK(chosen != as_options_say);
  CHECK(drafted(scratched / "alone", models / "draft") == chosen);
  CHECK(drafted(scratched / "alone", models / "draft/") == chosen);
  CHECK(drafted(scratched / "alone", scratched / "bare/draft",
                "--selectors '" + (models / "selector").string() + "'") == chosen);
  // That of other models is left out, and no error.
  CHECK(drafted(scratched / "alone", scratched / "wrong/draft") > 0);

  // A draft of some tokens alone is another one than that for which this selector was trained.
  std::vector<int> few(4000);
  std::iota(few.begin(), few.end(), 0);
  const std::string list = (scratched / "few.json").string(), of_few = "--head-tokens '" + list + "'";
  std::ofstream(list) << nlohmann::json({{"head_tokens", few}});
  CHECK(drafted(scratched / "alone", models / "draft", of_few) ==
        drafted(scratched / "alone", scratched / "bare/draft", of_few));
  const outcome refused =
      run(asked + "--head-tokens '" + list + "' --selectors '" + (models / "selector").string() + "'");
  CHECK(refused.status == 2);
  CHECK(contains(refused.err, "was trained for the draft model llama 2x128, 4096 tokens, "));
  CHECK(contains(refused.err, ", 4000 drafted: train a selector for it"));
}
