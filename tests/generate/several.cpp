// SPDX-License-Identifier: BSL-1.0
// Trees of two drafters in one, rounds that are drafted ahead, and rules that change the text.
#include <nlohmann/json.hpp>
#include <string>

#include "catch.hpp"
#include "program.hpp"
#include "written.hpp"

namespace {

using nlohmann::json;

// A text that repeats itself, so that counts of it have something to draft.
const std::string prompt = "--prompt 'one two three four five one two three four five one two three' --max-tokens 40 ";

void refused(const std::string& arguments, const std::string& why) {
  const outcome result = run(arguments);
  INFO(result.err);
  CHECK(result.status == 2);
  CHECK(contains(result.err, why));
}

}  // namespace

TEST_CASE("a tree of the text is merged with the drafter's, and writes plain decoding's text", "[generate][several]") {
  const std::string expected = text_of(written(quickly() + prompt + "--method plain"));
  for (const std::string drafter : {"model", "block"}) {
    for (const std::string method : {"chain", "dynatree", "best-first", "cost-aware"}) {
      const std::string arguments =
          quickly() + prompt + "--budget 12 --chain.length 5 --drafter " + drafter + " --method " + method;
      INFO(arguments);
      const json alone =
          written(method == "chain" ? quickly() + prompt + "--drafter " + drafter + " --method chain" : arguments);
      const json merged = written(method == "chain" ? quickly() + prompt + "--drafter " + drafter +
                                                          " --method chain --text-method best-first"
                                                    : arguments + " --text-method chain");
      CHECK(text_of(alone) == expected);
      CHECK(text_of(merged) == expected);
      const json& before = alone.at("statistics");
      const json& after = merged.at("statistics");
      CHECK(after.at("drafted_per_round") > before.at("drafted_per_round"));
      CHECK(after.at("tokens_per_round") >= before.at("tokens_per_round"));
    }
  }
  const outcome shown = run(quickly() + prompt + "--method dynatree --text-method chain");
  CHECK(contains(shown.out, "40 tokens by dynatree and chain over the text with greedy in "));
}

TEST_CASE("all methods of chosen trees compare with a tree of the text, drawn texts too", "[generate][several]") {
  const outcome compared = run(quickly() + prompt + "--compare --repeats 1 --text-method chain --json");
  INFO(compared.err);
  REQUIRE(compared.status == 0);
  const json methods = json::parse(compared.out).at("methods");
  CHECK(methods.size() > 6);
  for (const json& method : methods)
    CHECK(method.at("method") != "delayed");
  const json drawn = written(prompt + "--temperature 1 --text-method chain");
  CHECK(drawn.at("method") == "dynatree");
  CHECK(drawn.at("verifier") == "target-only");
}

TEST_CASE("what cannot be merged is refused in a sentence", "[generate][several]") {
  refused("--text-method delayed", "--text-method must be one of chain, adaptive-chain, ");
  refused("--text-method nothing", "but is \"nothing\"");
  refused("--text-method chain --drafter text", "--text-method drafts from the text beside another drafter");
  refused("--text-method chain --method delayed", "merges trees of chosen tokens, and --method delayed has none");
  refused("--text-method chain --method plain", "--method plain has none");
  refused("--text-method chain --device cuda", "it does not go with --device cuda");
}

TEST_CASE("a round is drafted ahead, and the text is the same", "[generate][several]") {
  for (const std::string how :
       {"--method chain", "--method dynatree --budget 8", "--temperature 0.8 --seed 4 --method sampled-chain",
        "--temperature 0.8 --method delayed", "--temperature 0.8 --method dyspec-greedy --budget 8"}) {
    INFO(how);
    const json alone = written(quickly() + prompt + how), ahead = written(quickly() + prompt + how + " --ahead");
    CHECK(text_of(alone) == text_of(ahead));
    CHECK(alone.at("statistics").at("rounds") == ahead.at("statistics").at("rounds"));
    CHECK(alone.at("statistics").at("drafted_ahead") == 0);
    CHECK(ahead.at("options").at("ahead") == true);
  }
  const json ahead = written(quickly() + prompt + "--method chain --length 2 --ahead");
  CHECK(ahead.at("statistics").at("drafted_ahead") > 0);
  const outcome shown = run(quickly() + prompt + "--method chain --length 2 --ahead");
  CHECK(contains(shown.out, "drafted ahead "));
  refused("--ahead --drafter text", "--ahead does not go with --drafter text: only a draft model drafts ahead");
  refused("--ahead --drafter block", "--drafter block");
  refused("--ahead --device cuda", "--device cuda");
  refused("--ahead --text-method chain", "--text-method: it drafts from what the target writes");
  refused("--ahead --regex 'a+'", "a constraint");
  refused("--ahead --method plain", "it drafts nothing");
  refused("--ahead --method neural-delayed", "it reads the states of the target");
}

TEST_CASE("a rule that changes the text is taken where its name says so, and nowhere else", "[generate][several]") {
  const json typical = written(prompt + "--temperature 1 --method dynatree --verifier approximate-typical --most 0.01");
  const json lossless = written(prompt + "--temperature 1 --method dynatree");
  CHECK(typical.at("options").at("approximate-typical").at("most") == 0.01);
  CHECK(typical.at("statistics").at("acceptance_rate") > lossless.at("statistics").at("acceptance_rate"));
  CHECK(lossless.at("verifier") == "target-only");
  for (const std::string rule : {"approximate-relaxed", "approximate-deferral"})
    CHECK(written(prompt + "--temperature 1 --method iid-paths --verifier " + rule).at("verifier") == rule);
  refused(prompt + "--temperature 1 --method dynatree --verifier approximate-deferral",
          "--verifier approximate-deferral would");
  const outcome help = run("--help");
  CHECK(contains(help.out, "CHANGES THE TEXT"));
  const std::string lists = help.out.substr(help.out.find("which keep the distribution of the text"));
  CHECK_FALSE(contains(lists, "approximate-"));
  const outcome compared =
      run(quickly() + prompt +
          "--compare --repeats 1 --temperature 1 --method dynatree --verifier target-only,approximate-typical");
  CHECK(contains(compared.out, "ANOTHER DISTRIBUTION"));
  CHECK(contains(compared.out, "same distribution"));
}

TEST_CASE("rates by rank shape sequoia's tree", "[generate][several]") {
  const std::string tree = prompt + "--temperature 1 --method sequoia --budget 8 --max-depth 8 --acceptance ";
  const json deep = written(tree + "1"), flat = written(tree + "0.3,0.3,0.3,0.3,0.3,0.3,0.3,0.3");
  CHECK(deep.at("statistics").at("depth") > 7.0);
  CHECK(flat.at("statistics").at("depth") < 3.0);
  refused(tree + "1.5", "--method sequoia: option acceptance rate is 1.5");
  refused(tree + "0.5,", "--acceptance must be at most 64 numbers with commas between them, but is \"0.5,\"");
}
