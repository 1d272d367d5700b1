// SPDX-License-Identifier: BSL-1.0
// Tested by tests/exactness/processed.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "espalier/backend/text.hpp"
#include "espalier/concepts/processor.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/decoder/decoder.hpp"
#include "espalier/drafter/autoregressive.hpp"
#include "espalier/kv_store/token_kv.hpp"
#include "espalier/testing/coverage.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/text_distribution.hpp"
#include "espalier/testing/tiny_model.hpp"

namespace espalier::testing {

//! The prompt of the texts that whole decoders write over tiny models.
inline const std::vector<token_id> tiny_prompt{0, 1, 0};

//! A model for text_backend: it gives the logarithms of a tiny model's row, whose path is the text after tiny_prompt;
//! minus infinity for a probability of 0.
struct row_logits {
  tiny_model::row_function row;

  void operator()(std::span<const token_id> text, std::span<double> logits) const {
    const std::vector<double> p = row(text.subspan((std::min)(tiny_prompt.size(), text.size())));
    std::transform(p.begin(), p.end(), logits.begin(), [](double x) { return std::log(x); });
  }
};

namespace detail {

// The target's row after a text, as a processor changes it; all 0 if the processor forbids every token. With
// `greedily`, all probability is on the most probable token.
template <class ProcessorT>
std::vector<double> processed_row(const tiny_model::row_function& row, ProcessorT process, bool greedily,
                                  const std::vector<token_id>& text) {
  process.begin(tiny_prompt);
  process.commit(text);
  std::vector<double> z = row(text);
  for (double& x : z)
    x = std::log(x);
  process.process({}, std::span(z));
  const auto best = std::max_element(z.begin(), z.end());
  const double most = *best;
  if (most == -std::numeric_limits<double>::infinity()) return std::vector<double>(z.size(), 0.0);
  const auto at = best - z.begin();
  for (double& x : z)
    x = greedily ? 0.0 : std::exp(x - most);
  if (greedily) z[static_cast<std::size_t>(at)] = 1;
  return normalised(z);
}

// Adds to `sum` the texts of up to n tokens, `text` included, that the target alone writes after `text`, with their
// probabilities. A text ends before n tokens where no token is allowed.
template <class ProcessorT>
void write_alone(const tiny_model::row_function& row, const ProcessorT& process, bool greedily,
                 std::vector<token_id> text, double probability, std::size_t n, text_distribution& sum) {
  text.resize((std::min)(text.size(), n));
  const std::vector<double> next =
      text.size() == n ? std::vector<double>() : processed_row(row, process, greedily, text);
  if (std::all_of(next.begin(), next.end(), [](double p) { return p == 0; })) {
    sum[text] += probability;
    return;
  }
  for (std::size_t t = 0; t < next.size(); ++t) {
    if (next[t] == 0) continue;
    text.push_back(static_cast<token_id>(t));
    write_alone(row, process, greedily, text, probability * next[t], n, sum);
    text.pop_back();
  }
}

}  // namespace detail

//! Runs every outcome of two rounds of a decoder, and checks that the first three tokens are distributed as the target
//! alone writes them from rows that the processor has changed, and that texts end where the processor forbids every
//! token.
//!
//! Pre         the decoder's target is a text_backend of row_logits{model.target} and samples at temperature 1, or at 0
//!             with `greedily`; its texts have copies of `process`
//! Errors      law_error that names the model, the text whose probability differs the most, and both its probabilities
template <class DecoderT, class ProcessorT>
void check_two_rounds(DecoderT& decode, const tiny_model& model, const ProcessorT& process, bool greedily,
                      coverage& covered) {
  constexpr std::size_t n = 3;
  text_distribution expected, written, ended;
  detail::write_alone(model.target, process, greedily, {}, 1.0, n, expected);
  enumerating_chance chance;
  do {
    decode.begin(tiny_prompt, {.max_tokens = 5});
    for (int round = 0; round < 2; ++round) {
      decode.step_with(chance);
      covered.n_accepted += decode.last_round().accepted();
      covered.depth = (std::max)(covered.depth, decode.last_round().accepted());
    }
    const auto tokens = decode.current().written();
    const bool is_over = decode.current().state() == status::nothing_allowed;
    covered.n_ended += is_over ? 1 : 0;
    (is_over ? ended : written)[{tokens.begin(), tokens.end()}] += chance.probability();
    ++covered.n_outcomes;
  } while (chance.next());
  text_distribution law;
  for (const auto& [text, probability] : ended)
    law[{text.begin(), text.begin() + static_cast<std::ptrdiff_t>((std::min)(n, text.size()))}] += probability;
  for (const auto& [text, probability] : written)
    detail::write_alone(model.target, process, greedily, text, probability, n, law);
  const text_difference off = largest_difference(law, expected);
  covered.largest_difference = (std::max)(covered.largest_difference, off.size());
  covered.vocabulary = (std::max)(covered.vocabulary, model.vocab);
  require_law(off.size() <= 1e-12, "the decoder is not lossless. Over the tiny model \"", model.name,
              "\" two rounds write the tokens ", detail::in_words(off.text), " with probability ", off.first,
              "; the target alone writes them with ", off.second, ".");
}

//! Checks a pair of policy and verifier in a whole decoder, with caches and a processor, such as a constraint: every
//! outcome of two rounds over models of two and three tokens, see check_two_rounds(). make_process(vocab) returns the
//! processor of a text.
//!
//!     std::cout << testing::check_decoder(my_policy({.budget = 3}), specinfer(),
//!                                         [](int vocab) { return constrained(my_constraint(vocab)); });
//!
//! Complexity  the number of outcomes of two rounds, exponential in the tree's draws: give the policy a budget of 3
//! Errors      law_error that names the model, the text whose probability differs the most, and both its probabilities
template <class PolicyT, class VerifierT, class MakeT>
coverage check_decoder(const PolicyT& policy, const VerifierT& verifier, const MakeT& make_process) {
  coverage covered;
  for (const tiny_model& model : tiny_models()) {
    if (model.name != "unlike, vocabulary 2" && model.name != "zeros in both, vocabulary 3") continue;
    constexpr bool greedily = ArgmaxVerifier<VerifierT>;
    token_kv kv(16, covered.n_models % 2 == 0 ? commit_mode::compact : commit_mode::truncate), draft_kv(16);
    text_backend target(model.vocab, row_logits{model.target});
    text_backend draft(model.vocab, row_logits{model.draft});
    autoregressive drafter(draft, draft_kv);
    const auto process = make_process(model.vocab);
    auto decode = make_decoder(drafter, policy, verifier, kv, target,
                               {.text = {.sampling = {.temperature = greedily ? 0.0F : 1.0F}}}, process);
    check_two_rounds(decode, model, process, greedily, covered);
    ++covered.n_models;
  }
  return covered;
}

//! Checks a pair as above, without a processor.
template <class PolicyT, class VerifierT>
coverage check_decoder(const PolicyT& policy, const VerifierT& verifier) {
  return check_decoder(policy, verifier, [](std::int32_t) { return no_processor(); });
}

}  // namespace espalier::testing
