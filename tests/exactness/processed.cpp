// SPDX-License-Identifier: BSL-1.0
// Texts with a processor, by enumeration: two rounds of a whole decoder write what the target alone writes of the rows
// that the processor leaves, and end where it leaves none. Every pair of the registry.
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "espalier/backend/text.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/drafter/prompt_lookup.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/processor/constrained.hpp"
#include "espalier/processor/penalties.hpp"
#include "espalier/processor/processors.hpp"
#include "espalier/registry.hpp"
#include "espalier/testing/decoder_laws.hpp"
#include "espalier/tree_policy/chain.hpp"
#include "espalier/tree_policy/cost_aware.hpp"
#include "espalier/verifier/greedy.hpp"
#include "espalier/verifier/target_only.hpp"
#include "exactness/any_parts.hpp"
#include "exactness/tiny_options.hpp"

using namespace espalier;
using namespace espalier::testing;

namespace {

using tokens = std::vector<token_id>;

// States of a table: next[state][token], or -1. Where a state has several tokens, it may have a guess.
struct table_constraint {
  using state_type = int;
  std::vector<std::vector<int>> next;
  std::vector<std::optional<token_id>> guess;  // by state
  std::uint32_t mask = 0;

  int start() const { return 0; }
  int advance(int state, token_id token) const {
    return state < 0 ? -1 : next[static_cast<std::size_t>(state)][static_cast<std::size_t>(token)];
  }
  std::span<const std::uint32_t> allowed(int state) {
    mask = 0;
    for (std::size_t t = 0; state >= 0 && t < next[0].size(); ++t)
      mask |= next[static_cast<std::size_t>(state)][t] >= 0 ? 1U << t : 0U;
    return {&mask, 1};
  }
  std::optional<token_id> prescribed(int state) const {
    if (state < 0 || static_cast<std::size_t>(state) >= guess.size()) return std::nullopt;
    return guess[static_cast<std::size_t>(state)];
  }
};

static_assert(PrescribingConstraint<table_constraint>);

using processor = processors<penalties, constrained<table_constraint>>;

// Any token but the one before it.
table_constraint changing(std::int32_t vocab) {
  table_constraint c;
  for (std::int32_t state = 0; state <= vocab; ++state) {
    auto& row = c.next.emplace_back();
    for (std::int32_t t = 0; t < vocab; ++t)
      row.push_back(t + 1 == state ? -1 : t + 1);
  }
  return c;
}

// Token 1 ends the text where it comes second; after two tokens 0 comes the last token alone.
table_constraint ending(std::int32_t vocab) {
  table_constraint c;
  c.next.assign(4, std::vector<int>(static_cast<std::size_t>(vocab), -1));
  c.next[0][0] = c.next[0][1] = 1;
  c.next[1][0] = 2, c.next[1][1] = 3;
  c.next[2].back() = 2;
  return c;
}

using rows = espalier::detail::processed_rows<double, processor>;

}  // namespace

TEST_CASE("texts with a processor are the processed target's to 1e-12, two rounds: every pair of the registry") {
  coverage sum;
  int pairs = 0;
  for (const tiny_model& w : tiny_models()) {
    const bool has_zeros = w.name == "zeros in both, vocabulary 3";
    if (!has_zeros && w.name != "unlike, vocabulary 2") continue;
    const penalties by_path({.repetition = 1.5, .presence = 0.4, .frequency = 0.7});
    const processor all[] = {processor(by_path, {}), processor(penalties(), constrained(changing(w.vocab))),
                             processor(by_path, constrained(ending(w.vocab)))};
    for (const processor& process : all) {
      if (has_zeros && &process != &all[2]) continue;
      for_each_compatible_pair([&](const auto& policy, const auto& verifier) {
        using policy_type = typename std::decay_t<decltype(policy)>::type;
        constexpr bool greedily = ArgmaxVerifier<typename std::decay_t<decltype(verifier)>::type>;
        INFO(policy.name << " with " << verifier.name << ", " << w.name << ", processor " << &process - all);
        auto part = policy;
        part.options = tiny(policy.options).back();
        const commit_mode mode = pairs++ % 2 == 0 ? commit_mode::compact : commit_mode::truncate;
        token_kv kv(16, mode), draft_kv(16, mode);
        text_backend target(w.vocab, row_logits{w.target});
        text_backend draft(w.vocab, row_logits{w.draft});
        autoregressive drafter(draft, draft_kv);
        const float temperature = greedily ? 0.0F : 1.0F;
        auto decode = make_decoder(drafter, enumerated_policy<policy_type::sampling>(part.make()),
                                   any_verifier<rows>(verifier.make()), kv, target,
                                   {.text = {.sampling = {.temperature = temperature}}}, process);
        check_two_rounds(decode, w, process, greedily, sum);
      });
    }
  }
  std::cout << "two rounds with processors: " << pairs << " pairs, processors and models, " << sum.n_outcomes
            << " outcomes, " << sum.n_ended << " ended early, 0 failing; largest difference " << sum.largest_difference
            << "\n";
  CHECK(sum.n_ended > 1000);
}

TEST_CASE("runs that a constraint prescribes leave texts as the target alone writes them") {
  coverage sum;
  for (const tiny_model& w : tiny_models()) {
    if (w.vocab < 2) continue;
    const penalties by_path({.repetition = 1.5, .presence = 0.4, .frequency = 0.7});
    table_constraint guessing = changing(w.vocab), leading = ending(w.vocab);
    guessing.guess.assign(static_cast<std::size_t>(w.vocab) + 1, 0);
    guessing.guess[1] = 1;  // after 0, which may not come again
    leading.guess = {1, 0};
    for (const processor& process :
         {processor(by_path, constrained(guessing)), processor(by_path, constrained(leading)),
          processor(penalties(), constrained(leading))}) {
      const auto check = [&](auto policy, auto verifier) {
        constexpr bool greedily = ArgmaxVerifier<decltype(verifier)>;
        token_kv kv(16);
        text_backend target(w.vocab, row_logits{w.target});
        auto decode = make_decoder(prompt_lookup(), policy, verifier, kv, target,
                                   {.text = {.sampling = {.temperature = greedily ? 0.0F : 1.0F}}}, process);
        check_two_rounds(decode, w, process, greedily, sum);
      };
      check(chain({.length = 1}), target_only());
      check(chain({.length = 3}), target_only());
      check(chain({.length = 3}), greedy());
      check(cost_aware({.budget = 3, .draft_cost = 0, .row_cost = 0.001}), target_only());
      check(cost_aware({.budget = 3, .draft_cost = 0, .row_cost = 0.3}), target_only());
    }
  }
  std::cout << "two rounds with prescribed runs: " << sum.n_outcomes << " outcomes, " << sum.n_ended
            << " ended early, 0 failing; largest difference " << sum.largest_difference << "\n";
  CHECK(sum.n_accepted > 1000);
  CHECK(sum.n_outcomes > 1000);
}
