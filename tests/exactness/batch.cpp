// SPDX-License-Identifier: BSL-1.0
// Two texts that share rounds, by enumeration: whatever the one writes, the other is distributed as the target alone
// writes, wherever one of them joins or leaves, shared budget included.
#include <cmath>
#include <iostream>
#include <map>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/testing/lossless.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/tree_policy/cost_aware_draws.hpp"
#include "espalier/tree_policy/delayed.hpp"
#include "espalier/tree_policy/dyspec_greedy.hpp"
#include "espalier/tree_policy/sampled_chain.hpp"
#include "espalier/verifier/block_verification.hpp"
#include "espalier/verifier/residual_walk.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/traversal.hpp"

using namespace espalier;
using namespace espalier::testing;

namespace {

using tokens = std::vector<token_id>;

// Rows of a world as logits, of paths that go on from prompts of this length. The second text's are of another seed,
// which its prompt says.
struct world_logits {
  tiny_model::row_function first, second;
  std::size_t prompt;

  void operator()(std::span<const token_id> text, std::span<double> logits) const {
    const auto& row = text[0] == 0 ? first : second;
    const std::vector<double> p = row(text.subspan(std::min(prompt, text.size())));
    for (std::size_t t = 0; t < p.size(); ++t)
      logits[t] = std::log(p[t]);
  }
};

struct plan {
  int join = 0;    // the step before which the second text joins
  int leave = -1;  // the one after which it leaves, if it does
};

std::int64_t outcomes = 0;

const auto from_model = [](auto& draft, auto& kv) { return autoregressive(draft, kv); };
const auto from_text = [](auto&, auto&) { return prompt_lookup(); };

// make(draft, draft_kv): the drafter.
template <class PolicyT, class VerifierT, class MakeT = decltype(from_model)>
void check(PolicyT policy, VerifierT verifier, const MakeT& make = from_model) {
  constexpr std::int32_t vocab = 2;
  constexpr int n = 3;
  const tiny_model::row_function p = irregular(100, vocab, 0, 0), q = irregular(200, vocab, 0, 0);
  const tiny_model::row_function other_p = irregular(300, vocab, 0, 0), other_q = irregular(400, vocab, 0, 0);
  text_distribution distribution_of_first, distribution_of_second;
  continue_with(p, {}, 1.0, n, distribution_of_first);
  continue_with(other_p, {}, 1.0, n, distribution_of_second);
  const tokens first{0, 0, 0}, second{1, 0, 1};
  text_backend target(vocab, world_logits{p, other_p, first.size()});
  text_backend draft(vocab, world_logits{q, other_q, first.size()});
  for (const plan when : {plan{0, -1}, plan{1, -1}, plan{2, -1}, plan{0, 0}, plan{0, 1}, plan{1, 1}}) {
    std::map<std::pair<tokens, tokens>, double> written;
    enumerating_chance chance;
    const auto chance_of = [&](text_id, const text&) -> enumerating_chance& { return chance; };
    do {
      token_kv kv(16, commit_mode::compact, 2), draft_kv(16, commit_mode::compact, 2);
      auto drafter = make(draft, draft_kv);
      auto decode = make_batch_decoder(drafter, policy, verifier, kv, target,
                                       {.text = {.sampling = {.temperature = 1}}, .max_texts = 2});
      const auto of = [&](text_id id) {
        const auto all = decode.current(id).written();
        return tokens(all.begin(), all.end());
      };
      decode.add(first, {.max_tokens = n});
      tokens cut;
      for (int step = 0; step <= when.join || step <= when.leave || !decode.idle(); ++step) {
        if (step == when.join) decode.add(second, {.max_tokens = n});
        for (const text_event& e : decode.step_with(chance_of))
          REQUIRE(!e.error);
        if (step == when.leave) {
          cut = of(1);
          decode.cancel(1);
        }
      }
      written[{of(0), when.leave < 0 ? of(1) : cut}] += chance.probability();
      ++outcomes;
    } while (chance.next());
    // A text that left is continued by the target.
    std::map<std::pair<tokens, tokens>, double> distribution;
    double total = 0;
    for (const auto& [texts, probability] : written) {
      text_distribution whole;
      continue_with(other_p, texts.second, probability, n, whole);
      for (const auto& [text, part] : whole)
        distribution[{texts.first, text}] += part;
      total += probability;
    }
    CHECK(total == Approx(1).margin(1e-12));
    for (const auto& [a, of_a] : distribution_of_first) {
      for (const auto& [b, of_b] : distribution_of_second) {
        INFO("joins at step " << when.join << ", leaves after " << when.leave);
        REQUIRE(std::abs(distribution[{a, b}] - of_a * of_b) < 1e-12);
      }
    }
    REQUIRE(distribution.size() == distribution_of_first.size() * distribution_of_second.size());
  }
}

}  // namespace

TEST_CASE("two texts that share rounds are each the target's, and independent of each other") {
  check(delayed({.paths = 2, .trunk = 1, .length = 0}), traversal());
  check(delayed({.paths = 2, .trunk = 0, .length = 1}), specinfer());
  check(dyspec_greedy({.budget = 2}), residual_walk());
  check(sampled_chain({.length = 2}), block_verification());
  check(cost_aware({.budget = 2, .draft_cost = 0.01, .row_cost = 0.001}), target_only());
  check(cost_aware({.budget = 3, .draft_cost = 0, .row_cost = 0.001}), target_only(), from_text);
  check(cost_aware({.budget = 3, .draft_cost = 0, .row_cost = 0.1}), target_only(), from_text);
  check(cost_aware_draws({.budget = 2, .draft_cost = 0.01, .row_cost = 0.001}), residual_walk());
  check(cost_aware_draws({.budget = 2, .draft_cost = 0.3, .row_cost = 0.1}), traversal_without_replacement());
  std::cout << "two texts of a batch decoder: " << outcomes << " outcomes, 0 failing\n";
  CHECK(outcomes > 10000);
}
