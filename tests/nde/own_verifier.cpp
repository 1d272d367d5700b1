// SPDX-License-Identifier: BSL-1.0
// What the program nde asks of a verifier, of the library's and of one's own.
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "nde/ot_verifiers.hpp"
#include "one_node.hpp"
#include "own_parts/parts.hpp"

using espalier::token_id;

TEST_CASE("one's own branching probabilities equal enumeration", "[nde]") {
  int compared = 0;
  for (const int vocab : {2, 3, 5}) {
    for (const auto& m : one_node::models(vocab, 1)) {
      for (int k = 1; k <= 3; ++k) {
        INFO(m.name << ", vocabulary " << vocab << ", " << k << " draws");
        one_node::for_each_list(m.q, k, [&](const one_node::list_type& list, double) {
          own::best_ratio verifier;
          const auto emitted = one_node::output_distribution(verifier, m.p, m.q, list);
          const std::vector<double> found = branching_probabilities(
              verifier, std::span<const double>(m.p), std::span<const double>(m.q), std::span<const token_id>(list));
          for (std::size_t i = 0; i < list.size(); ++i) {
            REQUIRE(std::abs(found[i] - emitted[static_cast<std::size_t>(list[i])]) < 1e-10);
            ++compared;
          }
        });
      }
    }
  }
  CHECK(compared > 500);
}

TEST_CASE("of a list of parts those are collected for that have branching probabilities", "[nde]") {
  const std::vector<nde::ot_verifier> own = nde::ot_verifiers_of(own::parts);
  REQUIRE(own.size() == 1);
  CHECK(own[0].name == "best-ratio");
}

TEST_CASE("a single draw branches as a list of one does", "[nde]") {
  const std::vector<float> p{0.5F, 0.25F, 0.25F, 0.0F}, q{0.25F, 0.25F, 0.0F, 0.5F};
  std::vector<nde::ot_verifier> all = nde::all_ot_verifiers();
  all.push_back(nde::ot_verifiers_of(own::parts).front());
  for (const nde::ot_verifier& verifier : all) {
    for (const token_id draw : {0, 1, 3}) {
      INFO(verifier.name << ", token " << draw);
      CHECK(verifier.single(p, q, draw) == Approx(verifier.branching(p, q, std::span(&draw, 1)).front()));
    }
  }
}
