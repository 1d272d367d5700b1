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
#include "exactness/distinct_draws.hpp"
#include "exactness/worlds.hpp"

using namespace espalier;
using namespace worlds;
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
constexpr bool samples = !is_argmax_only<VerifierT>;

// A text_backend's model that gives a world's rows as logits; the text before the path is `prompt` tokens long, and what follows
// a part of it is of no interest.
struct world_model {
  row_function row;
  std::size_t prompt;
  void operator()(std::span<const token_id> text, std::span<double> logits) const {
    const std::vector<double> p = row(text.subspan(std::min(prompt, text.size())));
    for (std::size_t t = 0; t < p.size(); ++t)
      logits[t] = p[t] > 0 ? std::log(p[t]) : -1000.0;  // e^-1000 is exactly 0
  }
};

}  // namespace

TEST_CASE("one round, continued by the target, writes the target's law to 1e-12: every pair of the registry") {
  std::int64_t outcomes = 0;
  double worst = 0;
  const std::vector<world> all_worlds = all();
  const int pairs = for_each_tiny_pair([&](auto policy, auto verifier) {
    if constexpr (samples<decltype(verifier)>) {
      for (const world& w : all_worlds) {
        INFO(w.name);
        const double off = bias(w, policy, verifier, 4, outcomes);
        REQUIRE(off < 1e-12);
        worst = std::max(worst, off);
      }
    }
  });
  std::cout << "one round: " << pairs << " pairs, " << all_worlds.size() << " models, " << outcomes
            << " outcomes, 0 failing; largest difference " << worst << "\n";
  CHECK(outcomes > 100000);
}

TEST_CASE("draws without replacement: the law of every verifier that names them") {
  std::int64_t outcomes = 0;
  int verifiers_tried = 0;
  hana::for_each(verifiers, [&](const auto& part) {
    using verifier_type = typename std::decay_t<decltype(part)>::type;
    if constexpr (compatible(regime::without_replacement, verifier_type::lossless) && samples<verifier_type>) {
      for (const world& w : all()) {
        INFO(part.name << ", " << w.name);
        REQUIRE(bias(w, distinct_draws{{2, 2}}, part.make(), 3, outcomes) < 1e-12);
        REQUIRE(bias(w, distinct_draws{{4}}, part.make(), 2, outcomes) < 1e-12);
        REQUIRE(bias(w, distinct_draws{.breadth = {3, 2}, .adaptive = true}, part.make(), 3, outcomes) < 1e-12);
      }
      ++verifiers_tried;
    }
  });
  std::cout << "without replacement: " << verifiers_tried << " verifiers, " << outcomes << " outcomes, 0 failing\n";
  CHECK(verifiers_tried >= 3);
}

TEST_CASE("draws beyond the support of the draft's row, as Sequoia makes them") {
  std::int64_t outcomes = 0;
  for (const world& w : all()) {
    INFO(w.name);
    REQUIRE(bias(w, distinct_draws{.breadth = {4}, .beyond = true}, residual_walk(), 2, outcomes) < 1e-12);
    REQUIRE(bias(w, distinct_draws{.breadth = {3, 2}, .beyond = true}, residual_walk(), 3, outcomes) < 1e-12);
  }
  CHECK(outcomes > 1000);
}

TEST_CASE("at temperature 0 every pair writes the target's argmax text") {
  std::int64_t outcomes = 0;
  for (const world& w : all()) {
    world sharp = w;
    sharp.target = [&](std::span<const token_id> path) {
      std::vector<double> row = w.target(path);
      const auto best = std::max_element(row.begin(), row.end()) - row.begin();
      std::fill(row.begin(), row.end(), 0.0);
      row[static_cast<std::size_t>(best)] = 1;
      return row;
    };
    for_each_tiny_pair([&](auto policy, auto verifier) {
      INFO(w.name);
      REQUIRE(bias(sharp, policy, verifier, 4, outcomes) < 1e-12);
    });
  }
  CHECK(outcomes > 10000);
}

TEST_CASE("two rounds of a whole decoder write the target's law to 1e-12: every pair, both ways of committing") {
  const text_type prompt{0, 0, 0};
  constexpr std::size_t n = 3;
  std::int64_t outcomes = 0;
  int models = 0;
  for (const world& w : all()) {
    if (w.vocab > 2 && w.name.find("unlike") != 0 && w.name.find("zeros in both") != 0) continue;
    if (w.vocab > 3) continue;
    ++models;
    law_type expected;
    continue_with(w.target, {}, 1.0, n, expected);
    for (const commit_mode mode : {commit_mode::compact, commit_mode::truncate}) {
      for_each_compatible_pair([&](const auto& policy, const auto& verifier) {
        using verifier_type = typename std::decay_t<decltype(verifier)>::type;
        if constexpr (samples<verifier_type>) {
          INFO(policy.name << " with " << verifier.name << ", " << w.name);
          auto part = policy;
          part.options = tiny(policy.options).back();
          token_kv kv(16, mode), draft_kv(16, mode);
          text_backend target(w.vocab, world_model{w.target, prompt.size()});
          text_backend draft(w.vocab, world_model{w.draft, prompt.size()});
          autoregressive drafter(draft, draft_kv);
          auto decode =
              make_decoder(drafter, part.make(), verifier.make(), kv, target, {.sampling = {.temperature = 1}});
          law_type emitted, law;
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
          REQUIRE(distance(law, expected) < 1e-12);
        }
      });
    }
  }
  std::cout << "two rounds of the decoder: " << models << " models, " << outcomes << " outcomes, 0 failing\n";
  CHECK(outcomes > 10000);
}
