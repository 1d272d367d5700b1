// SPDX-License-Identifier: BSL-1.0
// Which methods go with which verifiers.
#include <boost/hana/for_each.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "catch.hpp"
#include "espalier/registry.hpp"
#include "program.hpp"
#include "written.hpp"

namespace {

namespace hana = boost::hana;
using nlohmann::json;

}  // namespace

TEST_CASE("every lossless pair writes, and every other one is refused by name", "[generate][pairings]") {
  int pairs = 0;
  const auto check = [&](std::string_view method, std::string_view verifier, bool writes) {
    const std::string arguments = quickly() + "--temperature 1 --seed 3 --prompt Once --method " + std::string(method) +
                                  " --verifier " + std::string(verifier);
    INFO(arguments);
    if (writes) {
      const json object = written(arguments + " --max-tokens 6", GENERATE_ON_HOST);
      CHECK(object.at("verifier") == verifier);
      CHECK(object.at("texts").at(0).at("tokens").size() == 6);
      ++pairs;
    } else {
      const outcome result = run(arguments, "", GENERATE_ON_HOST);
      CHECK(result.status == 2);
      CHECK(contains(result.err, "generate: --verifier " + std::string(verifier) + " w"));
    }
  };
  hana::for_each(espalier::tree_policies, [&]<class PolicyT>(const PolicyT& policy) {
    hana::for_each(espalier::verifiers, [&]<class VerifierT>(const VerifierT& verifier) {
      check(policy.name, verifier.name,
            espalier::compatible(PolicyT::type::sampling, VerifierT::type::lossless) &&
                !espalier::ArgmaxVerifier<typename VerifierT::type>);
    });
  });
  CHECK(pairs > 30);
}

TEST_CASE("where no verifier is named it is the one that suits the method and the temperature",
          "[generate][pairings]") {
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
