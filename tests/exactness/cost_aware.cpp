// SPDX-License-Identifier: BSL-1.0
// The cost-aware policies in many states of what they have learnt, pauses and trials among them: one round, and two of
// a decoder, write the target's distribution. And a variant that drops what it has drawn does not.
#include <algorithm>
#include <boost/hana/for_each.hpp>
#include <iostream>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/decoder/grow.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/registry.hpp"
#include "espalier/registry/chosen_verifier.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/tree_policy/adaptive_chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/cost_aware_draws.hpp"
#include "exactness/redrawn.hpp"
#include "logits_of_rows.hpp"

using namespace espalier;
using namespace espalier::testing;
namespace hana = boost::hana;

namespace {

// Rows for a trifle, as usual, and so dear that nearly nothing pays.
const std::vector<cost_aware_options> settings{{.budget = 4, .max_depth = 3, .draft_cost = 0.01, .row_cost = 0.001},
                                               {.budget = 4, .max_depth = 2, .draft_cost = 0.1, .row_cost = 0.05},
                                               {.budget = 3, .max_depth = 3, .draft_cost = 0.2, .row_cost = 0.2}};

struct round_of_training {
  bool drafted;
  bool accepted;
};

// One more round of a text, which takes the deepest path of the tree, or the last draw of each node on its way, or
// nothing.
enum class takes { deepest, last };
int went_on = 0;  // rounds whose tree goes on from a later draw of a node

template <class PolicyT>
round_of_training train(PolicyT& policy, bool accepts, std::uint32_t round, takes what = takes::deepest) {
  row_drafter drafter(4, [&](std::span<const token_id> path) { return irregular(9 + round % 3, 4, 0, 0)(path); });
  drafter.reserve(most_asked(policy));
  tree<> t(most_asked(policy));
  t.reset(0);
  philox_chance chance(5, 0, round);
  espalier::grow(policy, t, drafter, chance);
  const tree_view view = t;
  node_id deepest = root_node;
  for (node_id u = 1; accepts && u < view.n_nodes; ++u)
    deepest = view.depth[u] > view.depth[deepest] ? u : deepest;
  if (what == takes::last) {
    deepest = root_node;
    for (auto draws = view.draws(deepest); draws.begin() != draws.end(); draws = view.draws(deepest)) {
      int n = 0;
      for (const node_id child : draws) {
        deepest = child;
        ++n;
      }
      went_on += n > 1 && !view.is_leaf(deepest) ? 1 : 0;
    }
  }
  policy.observe(view, {deepest, 99});
  return {drafter.passes > 0, deepest != root_node};
}

// Calls f(policy, what it has been through) for states that histories of one text lead to.
template <class PolicyT, class FunctionT>
void for_each_state(const cost_aware_options& options, const FunctionT& f) {
  PolicyT policy(options);
  f(policy, "a new text");
  for (std::uint32_t round = 0; round < 12; ++round)
    train(policy, true, round);
  f(policy, "all accepted");
  for (std::uint32_t round = 0; round < 6; ++round)
    train(policy, round % 2 == 0, round);
  f(policy, "some accepted");
  PolicyT later = policy;
  for (std::uint32_t i = 0; i < 80; ++i)
    train(later, true, i, takes::last);
  f(later, "later draws are accepted");
  std::uint32_t round = 0;
  while (train(policy, false, round).drafted) {
    if (++round == 200) return;  // the draft costs too little to do without it
  }
  f(policy, "the first round of a pause is over");
  int pause = 1;
  PolicyT trial = policy;
  for (PolicyT next = policy; !train(next, false, round).drafted; ++pause) {
    trial = next;
    REQUIRE(pause < 100);
  }
  f(trial, "a trial follows");
  PolicyT failed = trial, succeeded = trial;
  train(failed, false, round);
  f(failed, "a trial has failed");
  REQUIRE(train(succeeded, true, round).accepted);
  f(succeeded, "a trial has succeeded");
}

// Calls f(verifier) for those that can judge its trees, where the target samples.
template <class PolicyT, class FunctionT>
int for_each_verifier(const FunctionT& f) {
  int n = 0;
  hana::for_each(verifiers, [&](const auto& part) {
    using verifier_type = typename std::decay_t<decltype(part)>::type;
    if constexpr (compatible(PolicyT::sampling, verifier_type::lossless) && !ArgmaxVerifier<verifier_type>) {
      INFO(part.name);
      f(chosen_verifier<PolicyT::sampling>(part.name));
      ++n;
    }
  });
  return n;
}

template <class PolicyT>
void check_rounds(const char* name, int least_verifiers) {
  coverage report;
  std::set<std::int32_t> sizes;
  int states = 0;
  for (const cost_aware_options& options : settings) {
    for_each_state<PolicyT>(options, [&](const PolicyT& policy, const char* state) {
      INFO(state << ", row cost " << options.row_cost);
      ++states;
      for (const tiny_model& w : tiny_models()) {
        INFO(w.name);
        const int n = for_each_verifier<PolicyT>(
            [&](auto verifier) { REQUIRE(round_difference(w, policy, verifier, report).size() < 1e-12); });
        REQUIRE(n >= least_verifiers);
        tree<> t(most_asked(policy));
        t.reset(0);
        row_drafter drafter(w.vocab, [&](std::span<const token_id> path) { return w.draft(path.subspan(1)); });
        drafter.reserve(most_asked(policy));
        philox_chance chance(1, 0, 0);
        espalier::grow(PolicyT(policy), t, drafter, chance);
        sizes.insert(t.size());
      }
    });
  }
  std::cout << name << ": " << states << " states, " << report.n_outcomes << " outcomes, 0 failing\n";
  CHECK(states >= 3 + 7 + 7);  // two settings pause
  CHECK(sizes.size() >= 4);    // the states matter
  CHECK(sizes.count(1) == 1);
}

template <class PolicyT>
void check_decoder() {
  const std::vector<token_id> prompt{0, 0, 0};
  std::int64_t outcomes = 0;
  for (const tiny_model& w : tiny_models()) {
    if (w.vocab > 3) continue;
    text_distribution expected;
    continue_with(w.target, {}, 1.0, 3, expected);
    for_each_verifier<PolicyT>([&](auto verifier) {
      INFO(w.name);
      token_kv kv(16), draft_kv(16);
      text_backend target(w.vocab, logits_of_rows{w.target, prompt.size()});
      text_backend draft(w.vocab, logits_of_rows{w.draft, prompt.size()});
      autoregressive drafter(draft, draft_kv);
      auto decode =
          make_decoder(drafter, PolicyT(settings[1]), verifier, kv, target, {.text = {.sampling = {.temperature = 1}}});
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
        continue_with(w.target, text, probability, 3, distribution);
      REQUIRE(largest_difference(distribution, expected).size() < 1e-12);
    });
  }
  CHECK(outcomes > 300);
}

}  // namespace

TEST_CASE("cost_aware writes the target's distribution in every state") {
  check_rounds<cost_aware>("cost_aware", 1);
  check_decoder<cost_aware>();
}

TEST_CASE("cost_aware_draws writes the target's distribution in every state, with every verifier for its draws") {
  went_on = 0;
  check_rounds<cost_aware_draws>("cost_aware_draws", 3);
  CHECK(went_on > 10);
  check_decoder<cost_aware_draws>();
}

namespace {

// Runs of three tokens at most.
struct text_runs : prompt_lookup {
  token_run propose_run(std::int32_t n) { return prompt_lookup::propose_run((std::min)(n, 3)); }
};

// A policy that begins a text with what it learnt before.
template <class PolicyT>
struct experienced : PolicyT {
  PolicyT before;
  explicit experienced(const PolicyT& policy) : PolicyT(policy), before(policy) {}
  void reset() { static_cast<PolicyT&>(*this) = before; }
};

// Rounds whose runs, of several matches, are right or wrong.
void teach(cost_aware& policy, bool right, int rounds) {
  struct known_run : text_runs {
    std::int32_t match = 0;
    token_run propose_run(std::int32_t) {
      static const token_id run[] = {1, 1, 1};
      return {run, match};
    }
  } drafter;
  philox_chance chance(1, 0, 0);
  for (int i = 0; i < rounds; ++i) {
    drafter.match = i % 5;
    tree<> t(policy.max_nodes());
    t.reset(0);
    espalier::grow(policy, t, drafter, chance);
    policy.observe(t, {right ? t.size() - 1 : root_node, right ? 1 : 0});
  }
}

// Texts of three tokens in rounds of a decoder that looks up what to draft, whose prompts repeat: every outcome. The
// policy begins the text with what it has learnt.
template <class PolicyT>
void check_runs(const PolicyT& policy, std::int64_t& outcomes, std::set<std::int32_t>& sizes) {
  for (const tiny_model& w : tiny_models()) {
    if (w.vocab < 2 || w.vocab > 3) continue;
    INFO(w.name);
    for (const std::vector<token_id>& prompt : {std::vector<token_id>{0, 1, 0, 1, 0}, {1, 1, 1}, {0, 1, 1, 0}}) {
      text_distribution expected;
      continue_with(w.target, {}, 1.0, 3, expected);
      for_each_verifier<PolicyT>([&](auto verifier) {
        token_kv kv(32);
        text_backend target(w.vocab, logits_of_rows{w.target, prompt.size()});
        auto decode = make_decoder(text_runs(), experienced<PolicyT>(policy), verifier, kv, target,
                                   {.text = {.sampling = {.temperature = 1}}});
        text_distribution emitted, distribution;
        enumerating_chance chance;
        do {
          decode.begin(prompt, {.max_tokens = 6});
          for (int round = 0; round < 2; ++round) {
            decode.step_with(chance);
            sizes.insert(decode.last_round().tree.n_nodes - 1);
          }
          const auto written = decode.current().written();
          emitted[{written.begin(), written.end()}] += chance.probability();
          ++outcomes;
        } while (chance.next());
        for (const auto& [text, probability] : emitted)
          continue_with(w.target, text, probability, 3, distribution);
        REQUIRE(largest_difference(distribution, expected).size() < 1e-12);
      });
    }
  }
}

}  // namespace

TEST_CASE("cost_aware over runs writes the target's distribution, whatever it has learnt, as does adaptive_chain") {
  std::int64_t outcomes = 0;
  std::set<std::int32_t> sizes;
  for (const double row_cost : {0.001, 0.05, 0.25}) {
    const cost_aware fresh({.budget = 4, .draft_cost = 0, .row_cost = row_cost});
    cost_aware hopeful = fresh, hopeless = fresh;
    teach(hopeful, true, 60);
    teach(hopeless, false, 60);
    check_runs(fresh, outcomes, sizes);
    check_runs(hopeful, outcomes, sizes);
    check_runs(hopeless, outcomes, sizes);
  }
  CHECK(sizes.size() == 4);  // from nothing to all of a run
  check_runs(adaptive_chain({.length = 2}), outcomes, sizes);
  std::cout << "cost_aware and adaptive_chain over runs: " << outcomes << " outcomes, 0 failing\n";
  CHECK(outcomes > 5000);
}

TEST_CASE("cost-aware draws that are not kept are biased") {
  coverage kept, dropped;
  for (const tiny_model& w : tiny_models()) {
    const cost_aware_draws policy(settings[0]);
    round_difference(w, redrawn<cost_aware_draws>{policy, [](auto, auto&) {}}, residual_walk(), kept);
    round_difference(w, redrawn<cost_aware_draws>{policy, drop_unlikely}, residual_walk(), dropped);
  }
  std::cout << "bias " << dropped.largest_difference << ": cost-aware draws dropped where they are unlikely\n";
  CHECK(kept.largest_difference < 1e-12);
  CHECK(dropped.largest_difference > 0.05);
}
