// SPDX-License-Identifier: BSL-1.0
#include "written.hpp"

#include <filesystem>

#include "catch.hpp"
#include "espalier/cost/hardware_name.hpp"
#include "espalier/model/files/cost_file.hpp"
#include "espalier/model/llama/model_identity.hpp"
#include "program.hpp"

nlohmann::json written(const std::string& arguments, const std::string& program) {
  const outcome result = run("--json " + arguments, "", program);
  INFO(arguments);
  REQUIRE(result.err == "");
  REQUIRE(result.status == 0);
  REQUIRE(nlohmann::json::accept(result.out));
  return nlohmann::json::parse(result.out);
}

std::string text_of(const nlohmann::json& object) {
  return object.at("texts").at(0).at("text");
}

const std::string& quickly() {
  static const std::string arguments = [] {
    const std::string path = scratch() + "/costs.json";
    espalier::cost_model costs = espalier::load_costs(GENERATE_MODELS "/selector/costs.json");
    costs.hardware = espalier::hardware_name(1);
    espalier::save_costs(costs, path);
    return "--threads 1 --costs '" + path + "' ";
  }();
  return arguments;
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
}
