// SPDX-License-Identifier: BSL-1.0
// Parts of one's own: that they are lossless, and what the program generate makes of them.
#include "own_parts/parts.hpp"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/testing.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "option_ranges.hpp"
#include "program.hpp"
#include "written.hpp"

namespace {

using nlohmann::json;
using own::best_ratio;
using own::entropy_tree;
namespace testing = espalier::testing;

json written_by_own(const std::string& arguments) {
  return written(quickly() + "--prompt 'The river' " + arguments, GENERATE_OWN_PARTS);
}

}  // namespace

TEST_CASE("one's own policy and verifier keep the laws and the target's distribution", "[generate][own_parts]") {
  const entropy_tree policy({.budget = 4, .depth = 3, .bits = 0.3});
  testing::check_tree_policy(entropy_tree({.budget = 8}));
  testing::check_verifier(best_ratio());
  testing::check_lossless(policy, espalier::specinfer());
  testing::check_lossless(policy, best_ratio());
  testing::check_lossless(espalier::iid_paths({.paths = 3, .length = 1}), best_ratio());
  testing::check_lossless(espalier::sampled_chain({.length = 3}), best_ratio());
  check_ranges(own::entropy_tree_options(), [](const auto& options) { (void)entropy_tree(options); });
}

TEST_CASE("one's own parts are chosen, described and given options like the library's", "[generate][own_parts]") {
  const outcome help = run("--help", "", GENERATE_OWN_PARTS);
  CHECK(help.status == 0);
  CHECK(contains(help.out, "entropy-tree       more draws where the draft is unsure"));
  CHECK(contains(help.out, "best-ratio         test the draw that the target likes"));
  CHECK(contains(help.out, "  --entropy-tree.bits N "));
  CHECK(contains(help.out, "neural-delayed, entropy-tree:\n      traversal, target-only, "));
  const json drawn = written_by_own(
      "--method entropy-tree --verifier best-ratio --bits 2.5 --entropy-tree.depth 4 --temperature 1 --seed 5 "
      "--max-tokens 24");
  CHECK(drawn.at("options").at("entropy-tree") == json{{"budget", 12}, {"depth", 4}, {"bits", 2.5}});
  CHECK(drawn.at("verifier") == "best-ratio");
  CHECK(drawn.at("statistics").at("tokens") == 24);
  CHECK(drawn.at("statistics").at("accepted") > 0);
  CHECK(written_by_own("--method entropy-tree --temperature 1 --max-tokens 2").at("verifier") == "traversal");
  const outcome wrong = run("--method entropy-tree --bits 0", "", GENERATE_OWN_PARTS);
  CHECK(wrong.status == 2);
  CHECK(contains(wrong.err, "--bits must be a number, 0.1 to 32, but is \"0\"."));
  const outcome misfit = run("--method dynatree --verifier best-ratio", "", GENERATE_OWN_PARTS);
  CHECK(misfit.status == 2);
  CHECK(contains(misfit.err,
                 "best-ratio goes with plain, sampled-chain, iid-paths, specinfer-static, delayed, neural-delayed, "
                 "entropy-tree; dynatree goes with greedy, target-only."));
}

TEST_CASE("one's own parts stand beside the library's where methods are compared", "[generate][own_parts]") {
  for (const char* drafter : {"model", "block"}) {
    INFO(drafter);
    const outcome compared =
        run(quickly() + "--compare --repeats 1 --json --max-tokens 24 --prompt 'The river' " + "--drafter " + drafter,
            "", GENERATE_OWN_PARTS);
    REQUIRE(compared.status == 0);
    const json object = json::parse(compared.out);
    CHECK(object.at("equal") == true);
    const json& last = object.at("methods").back();
    CHECK(last.at("method") == "entropy-tree");
    CHECK(last.at("statistics").at("accepted") > 0);
    CHECK(last.at("texts") == object.at("methods").front().at("texts"));
  }
  const json all = json::parse(
      run(quickly() + "--compare --repeats 1 --json --max-tokens 16 --prompt 'The river' --temperature 1 --verifier "
                      "best-ratio,khisti",
          "", GENERATE_OWN_PARTS)
          .out);
  std::vector<std::string> methods;
  for (const json& method : all.at("methods")) {
    CHECK(method.at("statistics").at("tokens") > 0);
    if (method.at("verifier") == "best-ratio") methods.push_back(method.at("method"));
  }
  CHECK(methods == std::vector<std::string>{"sampled-chain", "iid-paths", "specinfer-static", "delayed",
                                            "neural-delayed", "entropy-tree"});
}

TEST_CASE("trees of one's own policy are drawn like all others", "[generate][own_parts]") {
  const outcome drawn =
      run("--method entropy-tree --show-tree --max-tokens 8 --prompt 'The river' --svg '" + scratch() + "/own.svg'", "",
          GENERATE_OWN_PARTS);
  CHECK(drawn.status == 0);
  CHECK(contains(drawn.out, "Round 1: "));
  CHECK(contains(contents(scratch() + "/own.svg"), "entropy-tree, round "));
}
