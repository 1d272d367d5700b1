// SPDX-License-Identifier: BSL-1.0
// Every outcome of drafting and verifying, with its exact probability, over tiny vocabularies: what is emitted must be
// distributed as the target alone writes. The pairs are the registry's.
#include <array>
#include <boost/hana.hpp>
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

using namespace espalier;
using namespace espalier::testing;
namespace hana = boost::hana;

namespace {

// Settings small enough to run every outcome. A new policy needs its own.
std::array<no_options, 1> tiny(no_options) {
  return {};
}
std::array<chain_options, 1> tiny(chain_options) {
  return {{{.length = 3}}};
}
std::array<fixed_options, 2> tiny(fixed_options) {
  return {{{.depth = 2, .breadth = 2, .budget = 6}, {.depth = 3, .breadth = 3, .budget = 5}}};
}
std::array<dynatree_options, 1> tiny(dynatree_options o) {
  o.base_depth = std::min(o.base_depth, 2);
  o.max_depth = 2;
  o.budget = 12;
  return {o};
}
std::array<sampled_chain_options, 1> tiny(sampled_chain_options) {
  return {{{.length = 3}}};
}
std::array<iid_paths_options, 2> tiny(iid_paths_options) {
  return {{{.paths = 2, .length = 2}, {.paths = 3, .length = 1}}};
}
std::array<delayed_options, 3> tiny(delayed_options) {
  return {{{.paths = 2, .trunk = 1, .length = 2}, {.trunk = 1, .length = 0}, {.paths = 2, .trunk = 1, .length = 1}}};
}
std::array<neural_delayed_options, 1> tiny(neural_delayed_options) {
  return {{{.paths = 2, .trunk = 1, .length = 1}}};
}
std::array<adaptive_chain_options, 1> tiny(adaptive_chain_options) {
  return {{{.length = 3, .confidence = 0.3}}};
}
std::array<eagle2_options, 1> tiny(eagle2_options) {
  return {{{.beam = 2, .depth = 2, .budget = 4}}};
}
std::array<best_first_options, 1> tiny(best_first_options) {
  return {{{.budget = 5, .max_depth = 3}}};
}
std::array<specinfer_static_options, 2> tiny(specinfer_static_options) {
  return {{{.budget = 3, .level_1 = 2, .level_2 = 2, .level_3 = 0}, {.level_1 = 2, .level_2 = 1, .level_3 = 0}}};
}
std::array<sequoia_options, 2> tiny(sequoia_options) {
  return {{{.budget = 4, .max_depth = 2}, {.budget = 3, .max_depth = 3}}};
}

std::array<cost_aware_options, 2> tiny(cost_aware_options) {
  return {{{.budget = 4, .max_depth = 3, .draft_cost = 0.01, .row_cost = 0.001}, {.budget = 3, .max_depth = 2}}};
}

std::array<dyspec_greedy_options, 2> tiny(dyspec_greedy_options) {
  return {{{.budget = 4}, {.budget = 3}}};
}
std::array<dyspec_threshold_options, 3> tiny(dyspec_threshold_options o) {
  return {{{.budget = 5, .max_depth = 3, .threshold = 0.1, .fill = o.fill},
           {.budget = 5, .max_depth = 3, .threshold = 0.5, .fill = o.fill},
           {.budget = 3, .max_depth = 2, .threshold = 0.3, .fill = o.fill}}};
}

// Calls f(policy, verifier) for tiny settings of each compatible pair.
template <class FunctionT>
int for_each_tiny_pair(const FunctionT& f) {
  int pairs = 0;
  for_each_compatible_pair([&](const auto& policy, const auto& verifier) {
    INFO(policy.name << " with " << verifier.name);
    for (const auto& options : tiny(policy.options)) {
      auto part = policy;
      part.options = options;
      f(part.make(), verifier.make());
    }
    ++pairs;
  });
  return pairs;
}

template <class VerifierT>
constexpr bool samples = !ArgmaxVerifier<VerifierT>;

// A text_backend's model that gives a world's rows as logits, minus infinity where they are 0; the text before the path
// is `prompt` tokens long, and what follows a part of it is of no interest.
struct logits_of_rows {
  tiny_model::row_function row;
  std::size_t prompt;
  void operator()(std::span<const token_id> text, std::span<double> logits) const {
    const std::vector<double> p = row(text.subspan(std::min(prompt, text.size())));
    for (std::size_t t = 0; t < p.size(); ++t)
      logits[t] = std::log(p[t]);
  }
};

}  // namespace

TEST_CASE("one round, continued by the target, writes the target's distribution to 1e-12: every pair of the registry") {
  std::int64_t outcomes = 0;
  double worst = 0;
  const int pairs = for_each_tiny_pair([&](auto policy, auto verifier) {
    if constexpr (samples<decltype(verifier)>) {
      const lossless_report report = check_lossless(policy, verifier);
      outcomes += report.n_outcomes;
      worst = std::max(worst, report.largest_difference);
    }
  });
  std::cout << "one round: " << pairs << " pairs, " << tiny_models().size() << " models, " << outcomes
            << " outcomes, 0 failing; largest difference " << worst << "\n";
  CHECK(outcomes > 100000);
}

TEST_CASE("draws without replacement: every verifier that names them") {
  lossless_report report;
  int verifiers_tried = 0;
  hana::for_each(verifiers, [&](const auto& part) {
    using verifier_type = typename std::decay_t<decltype(part)>::type;
    if constexpr (compatible(regime::without_replacement, verifier_type::lossless) && samples<verifier_type>) {
      for (const tiny_model& w : tiny_models()) {
        INFO(part.name << ", " << w.name);
        REQUIRE(round_difference(w, distinct_draws{{2, 2}}, part.make(), report, {.n_tokens = 3}).size() < 1e-12);
        REQUIRE(round_difference(w, distinct_draws{{4}}, part.make(), report, {.n_tokens = 2}).size() < 1e-12);
        const distinct_draws adaptive{.breadth = {3, 2}, .adaptive = true};
        REQUIRE(round_difference(w, adaptive, part.make(), report, {.n_tokens = 3}).size() < 1e-12);
      }
      ++verifiers_tried;
    }
  });
  std::cout << "without replacement: " << verifiers_tried << " verifiers, " << report.n_outcomes
            << " outcomes, 0 failing\n";
  CHECK(verifiers_tried >= 3);
}

TEST_CASE("draws beyond the support of the draft's row, as Sequoia makes them") {
  check_lossless(distinct_draws{.breadth = {4}, .beyond = true}, residual_walk(), {.n_tokens = 2});
  const distinct_draws deeper{.breadth = {3, 2}, .beyond = true};
  CHECK(check_lossless(deeper, residual_walk(), {.n_tokens = 3}).n_outcomes > 1000);
}

TEST_CASE("at temperature 0 every pair writes the target's argmax text") {
  lossless_report report;
  for (const tiny_model& w : tiny_models()) {
    tiny_model sharp = w;
    sharp.target = argmax_only(w.target);
    for_each_tiny_pair([&](auto policy, auto verifier) {
      INFO(w.name);
      REQUIRE(round_difference(sharp, policy, verifier, report).size() < 1e-12);
    });
  }
  CHECK(report.n_outcomes > 10000);
}

TEST_CASE(
    "two rounds of a whole decoder write the target's distribution to 1e-12: every pair, both ways of committing") {
  const std::vector<token_id> prompt{0, 0, 0};
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
    for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
      for_each_compatible_pair([&](const auto& policy, const auto& verifier) {
        using verifier_type = typename std::decay_t<decltype(verifier)>::type;
        if constexpr (samples<verifier_type>) {
          INFO(policy.name << " with " << verifier.name << ", " << w.name);
          auto part = policy;
          part.options = tiny(policy.options).back();
          token_kv kv(16, mode), draft_kv(16, mode);
          text_backend target(w.vocab, logits_of_rows{w.target, prompt.size()});
          text_backend draft(w.vocab, logits_of_rows{w.draft, prompt.size()});
          autoregressive drafter(draft, draft_kv);
          auto decode = make_decoder(drafter, part.make(), verifier.make(), kv, target,
                                     {.text = {.sampling = {.temperature = 1}}});
          text_distribution emitted, law;
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
            continue_with(w.target, text, probability, n, law);
          REQUIRE(largest_difference(law, expected).size() < 1e-12);
        }
      });
    }
  }
  std::cout << "two rounds of the decoder: " << models << " models, " << outcomes << " outcomes, 0 failing\n";
  CHECK(outcomes > 10000);
}
