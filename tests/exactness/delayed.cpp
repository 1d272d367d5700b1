// SPDX-License-Identifier: BSL-1.0
// The expected block efficiency of random delayed trees, every tree and every verdict counted, against the vectors.
#include <cmath>
#include <iostream>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/registry.hpp"
#include "espalier/testing/lossless.hpp"
#include "vectors.hpp"

using namespace espalier;
using namespace espalier::testing;

namespace {

tiny_model::row_function markov(const std::vector<std::vector<double>>& rows) {
  return [rows](std::span<const token_id> path) {
    return path.empty() ? rows[0] : rows[static_cast<std::size_t>(path.back()) + 1];
  };
}

// Tokens a round, on average.
template <class VerifierT>
double efficiency(const tiny_model& w, delayed_options shape, VerifierT verifier, coverage& report) {
  double mean = 0;
  for (const auto& [text, probability] : round_distribution(w, delayed(shape), verifier, report))
    mean += probability * static_cast<double>(text.size());
  return mean;
}

}  // namespace

TEST_CASE("delayed trees commit as many tokens a round as the vectors say") {
  coverage report;
  int compared = 0;
  for (const auto& entry : load_vectors("delayed.json")) {
    const std::int32_t vocab = entry["markov"]["V"];
    const tiny_model w{"vectors", vocab, markov(entry["markov"]["P"]), markov(entry["markov"]["Q"])};
    for (const auto& row : entry["rows"]) {
      const std::vector<std::int32_t> s = row["shape"];
      const delayed_options shape{.paths = s[0], .trunk = s[1], .length = s[2]};
      // Larger trees have too many outcomes to run them all.
      if (std::pow(vocab, s[1] + s[0] * s[2]) > 7000) continue;
      const auto check = [&](const char* name, auto verifier) {
        if (!row["block_efficiency"].contains(name)) return;
        INFO(name << ", shape " << row["shape"].dump());
        const double expected = row["block_efficiency"][name];
        REQUIRE(std::abs(efficiency(w, shape, verifier, report) - expected) < 1e-9);
        ++compared;
      };
      check("nss", target_only());
      check("naive", naive_tree());
      check("spectr", spectr());
      check("specinfer", specinfer());
      check("khisti", khisti());
      check("traversal", traversal());
      check("traversal_dedup", traversal_without_replacement());
      if (s[0] == 1) check("bv", block_verification());
    }
  }
  std::cout << "delayed trees: " << compared << " block efficiencies, " << report.n_outcomes << " outcomes\n";
  CHECK(compared > 0);
}
