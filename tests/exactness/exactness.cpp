// SPDX-License-Identifier: BSL-1.0
// Every outcome of drafting and verifying, with its exact probability, over tiny vocabularies: what is emitted must be
// distributed as the target alone writes. The pairs are the registry's.
#include <boost/hana/for_each.hpp>
#include <iostream>
#include <set>
#include <string>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/registry.hpp"
#include "espalier/testing/lossless.hpp"
#include "exactness/distinct_draws.hpp"
#include "exactness/tiny_options.hpp"
#include "logits_of_rows.hpp"
#include "verifier_of.hpp"

using namespace espalier;
using namespace espalier::testing;
namespace hana = boost::hana;

namespace {

template <class VerifierT>
constexpr bool samples = !ArgmaxVerifier<VerifierT>;

// Calls f(policy, verifier) for tiny settings of each compatible pair; or only of pairs whose verifier samples.
enum class pairs_of { all, sampling };
template <class FunctionT>
int for_each_tiny_pair(pairs_of which, const FunctionT& f) {
  int pairs = 0;
  for_each_compatible_pair([&]<class VerifierT>(const auto& policy, const VerifierT& verifier) {
    if (which == pairs_of::sampling && !samples<typename VerifierT::type>) return;
    INFO(policy.name << " with " << verifier.name);
    for (const auto& options : tiny(policy.options)) {
      auto part = policy;
      part.options = options;
      f(part.make(), verifier_of(policy, verifier));
    }
    ++pairs;
  });
  return pairs;
}

const std::vector<token_id> prompt{0, 0, 0};

// What two rounds of a decoder write, continued by the target up to n tokens; counts the outcomes.
template <class PolicyT, class VerifierT>
text_distribution two_rounds(const tiny_model& w, const PolicyT& policy, const VerifierT& verifier, commit_mode mode,
                             std::size_t n, std::int64_t& outcomes) {
  token_kv kv(16, mode), draft_kv(16, mode);
  text_backend target(w.vocab, logits_of_rows{w.target, prompt.size()});
  text_backend draft(w.vocab, logits_of_rows{w.draft, prompt.size()});
  autoregressive drafter(draft, draft_kv);
  auto decode = make_decoder(drafter, policy, verifier, kv, target, {.text = {.sampling = {.temperature = 1}}});
  text_distribution emitted, distribution;
  enumerating_chance chance;
  do {
    decode.begin(prompt, {.max_tokens = 5});
    decode.step_with(chance);
    decode.step_with(chance);
    const auto written = decode.current().written();
    emitted[{written.begin(), written.end()}] += chance.probability();
    ++outcomes;
  } while (chance.next());
  for (const auto& [text, probability] : emitted)
    continue_with(w.target, text, probability, n, distribution);
  return distribution;
}

}  // namespace

TEST_CASE("one round, continued by the target, writes the target's distribution to 1e-12: every pair of the registry") {
  coverage all;
  const int pairs = for_each_tiny_pair(pairs_of::sampling, [&](const auto& policy, const auto& verifier) {
    const coverage covered = check_pair(policy, verifier, {.max_outcomes = 2'000'000});
    REQUIRE(covered.complete());
    all += covered;
  });
  std::cout << "one round: " << pairs << " pairs, 0 failing\n" << all;
  CHECK(all.n_outcomes > 100000);
}

TEST_CASE("draws without replacement: every verifier that names them") {
  coverage report;
  int verifiers_tried = 0;
  hana::for_each(verifiers, [&](const auto& part) {
    using verifier_type = typename std::decay_t<decltype(part)>::type;
    if constexpr (compatible(regime::without_replacement, verifier_type::lossless) && samples<verifier_type>) {
      for (const tiny_model& w : tiny_models()) {
        INFO(part.name << ", " << w.name);
        REQUIRE(round_difference(w, distinct_draws{{2, 2}}, part.make(), report).size() < 1e-12);
        REQUIRE(round_difference(w, distinct_draws{{4}}, part.make(), report).size() < 1e-12);
        const distinct_draws adaptive{.breadth = {3, 2}, .adaptive = true};
        REQUIRE(round_difference(w, adaptive, part.make(), report).size() < 1e-12);
      }
      ++verifiers_tried;
    }
  });
  std::cout << "without replacement: " << verifiers_tried << " verifiers, " << report.n_outcomes
            << " outcomes, 0 failing\n";
  CHECK(verifiers_tried >= 3);
}

TEST_CASE("draws beyond the support of the draft's row, as Sequoia makes them") {
  check_lossless(distinct_draws{.breadth = {4}, .beyond = true}, residual_walk());
  const distinct_draws deeper{.breadth = {3, 2}, .beyond = true};
  CHECK(check_lossless(deeper, residual_walk()).n_outcomes > 1000);
}

TEST_CASE("at temperature 0 every pair writes the target's argmax text") {
  coverage report;
  for (const tiny_model& w : tiny_models()) {
    tiny_model sharp = w;
    sharp.target = argmax_only(w.target);
    for_each_tiny_pair(pairs_of::all, [&](const auto& policy, const auto& verifier) {
      INFO(w.name);
      REQUIRE(round_difference(sharp, policy, verifier, report).size() < 1e-12);
    });
  }
  CHECK(report.n_outcomes > 10000);
}

TEST_CASE(
    "two rounds of a whole decoder write the target's distribution to 1e-12: every pair, both ways of committing") {
  constexpr std::size_t n = 3;
  std::int64_t outcomes = 0;
  int models = 0;
  for (const tiny_model& w : tiny_models()) {
    const auto is = [&](const char* name) { return w.name.find(name) == 0; };
    if (w.vocab > 2 && !is("unlike") && !is("zeros in both") && !is("holes in both")) continue;
    if (w.vocab > 3) continue;
    ++models;
    text_distribution expected;
    continue_with(w.target, {}, 1.0, n, expected);
    // Each pair commits in both ways, over one half of the models in each.
    int turn = models;
    for_each_compatible_pair([&]<class VerifierT>(const auto& policy, const VerifierT& verifier) {
      if (!samples<typename VerifierT::type>) return;
      INFO(policy.name << " with " << verifier.name << ", " << w.name);
      auto part = policy;
      part.options = tiny(policy.options).back();
      const commit_mode mode = turn++ % 2 == 0 ? commit_mode::compact : commit_mode::truncate;
      const text_distribution distribution =
          two_rounds(w, part.make(), verifier_of(policy, verifier), mode, n, outcomes);
      REQUIRE(largest_difference(distribution, expected).size() < 1e-12);
    });
  }
  std::cout << "two rounds of the decoder: " << models << " models, " << outcomes << " outcomes, 0 failing\n";
  CHECK(outcomes > 10000);
}
