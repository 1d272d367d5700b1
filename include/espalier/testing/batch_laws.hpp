// SPDX-License-Identifier: BSL-1.0
// Tested by tests/exactness/batch.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "espalier/backend/text.hpp"
#include "espalier/decoder/batch_decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/testing/coverage.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/text_distribution.hpp"
#include "espalier/testing/tiny_model.hpp"

namespace espalier::testing {

namespace detail {

// A model for text_backend: it gives the logits of `first` if the prompt begins with token 0, else of `second`. Prompts
// have three tokens.
struct logits_of_two {
  tiny_model::row_function first, second;

  void operator()(std::span<const token_id> text, std::span<double> logits) const {
    const auto& row = text[0] == 0 ? first : second;
    const std::vector<double> p = row(text.subspan((std::min)(std::size_t{3}, text.size())));
    std::transform(p.begin(), p.end(), logits.begin(), [](double x) { return std::log(x); });
  }
};

}  // namespace detail

//! Checks two texts of a batch decoder that share rounds, and a budget if the policy has one to share. Over every
//! outcome, each text is distributed as the target alone writes it, whatever the other text is, and whenever the second
//! text joins or leaves. make_drafter(draft, draft_kv) returns the drafter; if it is not given, the drafter is
//! autoregressive(draft, draft_kv).
//!
//!     std::cout << testing::check_batch(my_policy({.budget = 2}), specinfer());
//!
//! Complexity  the number of outcomes of two whole texts of 3 tokens: give the policy a budget of 2
//! Errors      law_error that names both texts and their probability
template <class PolicyT, class VerifierT, class MakeT>
coverage check_batch(const PolicyT& policy, const VerifierT& verifier, const MakeT& make_drafter) {
  using tokens = std::vector<token_id>;
  struct plan {
    int join;   // the step before which the second text joins
    int leave;  // the step after which the second text leaves; -1 if it stays
  };
  constexpr std::int32_t vocab = 2;
  constexpr int n = 3;
  coverage covered;
  const tiny_model::row_function p = irregular(100, vocab, 0, 0), q = irregular(200, vocab, 0, 0);
  const tiny_model::row_function other_p = irregular(300, vocab, 0, 0), other_q = irregular(400, vocab, 0, 0);
  text_distribution law_of_first, law_of_second;
  continue_with(p, {}, 1.0, n, law_of_first);
  continue_with(other_p, {}, 1.0, n, law_of_second);
  const tokens first{0, 0, 0}, second{1, 0, 1};
  text_backend target(vocab, detail::logits_of_two{p, other_p});
  text_backend draft(vocab, detail::logits_of_two{q, other_q});
  for (const plan when : {plan{0, -1}, plan{1, -1}, plan{2, -1}, plan{0, 0}, plan{0, 1}, plan{1, 1}}) {
    std::map<std::pair<tokens, tokens>, double> written;
    enumerating_chance chance;
    const auto chance_of = [&](text_id, const text&) -> enumerating_chance& { return chance; };
    do {
      token_kv kv(16, commit_mode::compact, 2), draft_kv(16, commit_mode::compact, 2);
      auto drafter = make_drafter(draft, draft_kv);
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
          require_law(!e.error, "a text of the batch fails in step ", step, ".");
        if (step == when.leave) {
          cut = of(1);
          decode.cancel(1);
        }
      }
      written[{of(0), when.leave < 0 ? of(1) : cut}] += chance.probability();
      ++covered.n_outcomes;
    } while (chance.next());
    // A text that left is continued by the target.
    std::map<std::pair<tokens, tokens>, double> law;
    for (const auto& [texts, probability] : written) {
      text_distribution whole;
      continue_with(other_p, texts.second, probability, n, whole);
      for (const auto& [text, part] : whole)
        law[{texts.first, text}] += part;
    }
    for (const auto& [a, of_a] : law_of_first) {
      for (const auto& [b, of_b] : law_of_second) {
        const double off = std::abs(law[{a, b}] - of_a * of_b);
        covered.largest_difference = (std::max)(covered.largest_difference, off);
        require_law(off <= 1e-12, "two texts that share rounds, of which the second joins before step ", when.join,
                    ", are written as ", detail::in_words(a), " and ", detail::in_words(b), " with probability ",
                    law[{a, b}], "; the target alone writes them with ", of_a * of_b, ".");
      }
    }
    require_law(law.size() == law_of_first.size() * law_of_second.size(),
                "texts that share rounds are not of the length that was asked for.");
  }
  covered.n_models = 2;
  covered.vocabulary = vocab;
  return covered;
}

template <class PolicyT, class VerifierT>
coverage check_batch(const PolicyT& policy, const VerifierT& verifier) {
  return check_batch(policy, verifier, [](auto& draft, auto& kv) { return autoregressive(draft, kv); });
}

}  // namespace espalier::testing
