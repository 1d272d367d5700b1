// SPDX-License-Identifier: BSL-1.0
// How far rules that are not lossless lead the text from the target, and what they gain: every outcome of drafting and
// verifying over tiny models is run, so that the numbers are the same on every machine.
#include "espalier/verifier/approximate.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <span>
#include <string>
#include <vector>

#include "../program.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/approximate/deferral.hpp"
#include "espalier/verifier/approximate/threshold_acceptance.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/naive.hpp"

using namespace espalier;
using testing::text_distribution;
using testing::tiny_model;

namespace {

// The model after a beginning of the text.
tiny_model after(const tiny_model& model, const std::vector<token_id>& beginning) {
  const auto later = [&](const tiny_model::row_function& row) {
    return [row, beginning](std::span<const token_id> path) {
      std::vector<token_id> text = beginning;
      text.insert(text.end(), path.begin(), path.end());
      return row(text);
    };
  };
  return {model.name, model.vocab, later(model.target), later(model.draft)};
}

// Adds the texts of n tokens that rounds write after a beginning of the given probability.
template <class VerifierT>
void write(const tiny_model& model, const sampled_chain& policy, const VerifierT& verifier,
           const std::vector<token_id>& beginning, double probability, std::size_t n, text_distribution& sum) {
  testing::coverage covered;
  text_distribution longer;
  for (const auto& [tokens, p] : testing::round_distribution(after(model, beginning), policy, verifier, covered)) {
    std::vector<token_id> text = beginning;
    text.insert(text.end(), tokens.begin(), tokens.end());
    text.resize((std::min)(text.size(), n));
    longer[text] += p;
  }
  for (const auto& [text, p] : longer) {
    if (text.size() < n)
      write(model, policy, verifier, text, probability * p, n, sum);
    else
      sum[text] += probability * p;
  }
}

template <class VerifierT>
void row(const char* name, const VerifierT& verifier, int length, std::size_t n) {
  const sampled_chain policy({.length = length});
  double mean = 0, most = 0, tokens = 0;
  const std::vector<tiny_model> models = testing::tiny_models();
  for (const tiny_model& model : models) {
    text_distribution expected, written;
    testing::continue_with(model.target, {}, 1.0, n, expected);
    write(model, policy, verifier, {}, 1.0, n, written);
    const double off = testing::total_variation(expected, written);
    mean += off, most = (std::max)(most, off);
    testing::coverage covered;
    for (const auto& [text, p] : testing::round_distribution(model, policy, verifier, covered))
      tokens += p * static_cast<double>(text.size());
  }
  const auto n_models = static_cast<double>(models.size());
  std::printf("| %s | %.3f | %.3f | %.3f |\n", name, tokens / n_models, mean / n_models, most);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  bench::program program("bench_tables_approximate",
                         "Rules that are not lossless: exact distance from the target, and tokens a round.");
  int length = 3, tokens = 4;
  program.add("--length", length, "tokens of the drafted path");
  program.add("--tokens", tokens, "tokens of the texts whose distributions are compared");
  return program.run(argc, argv, [&] {
    const auto n = static_cast<std::size_t>(tokens);
    std::printf(
        "## Rules that change the text\n\nPaths of %d drawn tokens, texts of %d tokens; means over %zu tiny models. "
        "Distance: total variation of the distributions of the texts, 0 where the rule is lossless and at most 1.\n\n"
        "| rule | tokens a round | distance | in the worst model |\n|---|--:|--:|--:|\n",
        length, tokens, testing::tiny_models().size());
    row("naive (lossless)", naive(), length, n);
    row("block verification (lossless)", block_verification(), length, n);
    row("typical, most 0.09, of_flat 0.3", approximate(typical_acceptance()), length, n);
    row("typical, most 0.3, of_flat 0.6", approximate(typical_acceptance({.most = 0.3, .of_flat = 0.6})), length, n);
    row("typical, most 1, of_flat 1", approximate(typical_acceptance({.most = 1, .of_flat = 1})), length, n);
    row("relaxed, best 5, below 0.6", approximate(relaxed_acceptance()), length, n);
    row("relaxed, best 2, below 0.2", approximate(relaxed_acceptance({.best = 2, .below = 0.2})), length, n);
    row("relaxed, best 1", approximate(relaxed_acceptance({.best = 1})), length, n);
    row("deferral, lenience -0.3", approximate(deferral({.lenience = -0.3})), length, n);
    row("deferral, lenience 0", approximate(deferral({.lenience = 0})), length, n);
    row("deferral, lenience 0.1", approximate(deferral()), length, n);
    row("deferral, lenience 0.3", approximate(deferral({.lenience = 0.3})), length, n);
    return 0;
  });
}
