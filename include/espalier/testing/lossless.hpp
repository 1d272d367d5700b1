// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/core/error.hpp"
#include "espalier/testing/coverage.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/rounds.hpp"
#include "espalier/testing/tested_parts.hpp"
#include "espalier/testing/text_distribution.hpp"
#include "espalier/testing/tiny_model.hpp"
#include "espalier/testing/tree_policy_laws.hpp"
#include "espalier/testing/verifier_laws.hpp"

namespace espalier::testing {

//! Options of check_lossless().
struct lossless_options {
  //! largest difference allowed in the probability of a text; 0: default_tolerance of the rows' type
  double tolerance = 0;
  //! most outcomes of the pair to run, over all models together, for each room that a tree may have for drafted tokens
  std::int64_t max_outcomes = 500'000;
};

//! Returns the texts that one round emits, with their probabilities, over every tree that the policy grows and every
//! verdict on it. Adds what it ran to `covered`.
//!
//! Complexity  the number of outcomes, exponential in the tree's draws: a budget of about 6 nodes is plenty
//! Errors      option_error beyond max_outcomes; law_error if the policy asks out of order, or the verifier accepts a
//!             node that is not in the tree or adds a token outside the vocabulary
template <class NumberT = double, class PolicyT, class VerifierT>
text_distribution round_distribution(const tiny_model& model, const PolicyT& policy, VerifierT verifier,
                                     coverage& covered, std::int64_t max_outcomes = 20'000'000) {
  const detail::tested_policy_of<NumberT, PolicyT> tested(policy);
  detail::tested_verifier_of<NumberT, VerifierT> by(std::move(verifier));
  detail::rounds<NumberT> round(model, tested.most_asked());
  by.reserve(tested.max_nodes(), model.vocab);
  text_distribution emitted;
  std::int64_t n_left = max_outcomes;
  if (!round.run_all(tested, by, tested.most_asked(), {}, emitted, covered, n_left)) {
    raise<option_error>("a round has more than ", max_outcomes, " outcomes over the tiny model \"", model.name,
                        "\": give the policy a budget of a few nodes.");
  }
  return emitted;
}

//! The text whose probability differs the most between two ways to write it: by the target alone, and by one round,
//! whose text the target continues. Adds the difference and the number of outcomes to `covered`.
template <class NumberT = double, class PolicyT, class VerifierT>
text_difference round_difference(const tiny_model& model, const PolicyT& policy, const VerifierT& verifier,
                                 coverage& covered) {
  const text_distribution emitted = round_distribution<NumberT>(model, policy, verifier, covered);
  const text_difference off = largest_difference_from(emitted, detail::remembered_rows(model.target));
  covered.largest_difference = (std::max)(covered.largest_difference, off.size());
  return off;
}

namespace detail {

// The checks of a pair of policy and verifier.
template <class NumberT>
class checked_pair {
 public:
  checked_pair(const tested_policy<NumberT>& policy, tested_verifier<NumberT>& verifier,
               const lossless_options& options)
      : policy_(policy),
        verifier_(verifier),
        n_left_(options.max_outcomes),
        tolerance_(options.tolerance > 0 ? options.tolerance : default_tolerance<NumberT>) {}

  coverage check() {
    const std::int32_t budget = policy_.max_nodes();
    {
      const auto drawn = policy_.copy();
      check_drawn_rounds<NumberT>(*drawn, verifier_, policy_.most_asked(), 150, covered_);
    }
    covered_.budget = budget;
    std::vector<tiny_model> models = tiny_models();
    if (verifier_.argmax_only()) {
      for (tiny_model& m : models)
        m.target = argmax_only(m.target);
    }
    covered_.n_models = static_cast<std::int32_t>(models.size());
    for (const tiny_model& m : models)
      covered_.vocabulary = (std::max)(covered_.vocabulary, m.vocab);
    // A few models are run with room for 0, 1, .. drafted tokens, up to the budget or until there are too many
    // outcomes; then all models with the room that was reached, or with less while there are too many outcomes; then
    // far_models(), with room for at most 2 tokens, or 1 if the vocabulary is large.
    const std::vector<tiny_model> few(models.begin() + 8, models.begin() + 14);  // models of three tokens
    std::vector<tiny_model> far_off = far_models(19);
    if (verifier_.argmax_only()) {
      for (tiny_model& m : far_off)
        m.target = argmax_only(m.target);
    }
    for (const tiny_model& m : far_off)
      covered_.far_vocabulary = (std::max)(covered_.far_vocabulary, m.vocab);
    models.push_back(far_off[0]);
    std::int32_t room = 0;
    while (run(few, policy_, room, "", 0) && room < budget)
      ++room;
    while (!run(models, policy_, room, "", 0))
      room = less(room);
    covered_.limit = room;
    std::int32_t far_room = (std::min)(room, 2);
    for (const tiny_model& m : far_off) {
      while (!run({m}, policy_, (std::min)(far_room, m.vocab < 10'000 ? 2 : 1), "", 0))
        far_room = less(far_room);
    }
    // The few models are run again with a policy that has seen a history of verdicts.
    const char* const names[] = {", after 8 rounds whose tokens were all rejected",
                                 ", after 8 rounds whose deepest paths were accepted",
                                 ", after 72 rounds of any verdicts"};
    for (int history = 0; history < 3; ++history) {
      const auto experienced = policy_.copy();
      live(*experienced, history);
      if (run(few, *experienced, room, names[history], 13 * (history + 1))) ++covered_.n_histories;
    }
    return covered_;
  }

 private:
  // Returns the next smaller room. Errors: option_error if there is none
  std::int32_t less(std::int32_t room) const {
    if (room == 0) {
      raise<option_error>("max_outcomes is ", n_left_, ", which is too few for the outcomes of rounds without drafted ",
                          "tokens over the tiny models; the default is ", lossless_options().max_outcomes, ".");
    }
    return room - 1;
  }

  // Runs every outcome over the models and checks the texts. Returns false if there are too many outcomes.
  bool run(const std::vector<tiny_model>& models, const tested_policy<NumberT>& policy, std::int32_t room,
           const char* history, int start) {
    std::int64_t n_left = n_left_;
    for (const tiny_model& model : models) {
      rounds<NumberT> round(model, policy.most_asked());
      verifier_.reserve(policy.max_nodes(), model.vocab);
      text_distribution emitted;
      const std::int32_t limit = room == policy.max_nodes() ? policy.most_asked() : room;
      if (!round.run_all(policy, verifier_, limit, any_start(start), emitted, covered_, n_left)) return false;
      const text_difference off = largest_difference_from(emitted, round.target_row());
      covered_.largest_difference = (std::max)(covered_.largest_difference, off.size());
      require_law(off.size() <= tolerance_, "the pair is not lossless. Over the tiny model \"", model.name,
                  "\", with room for ", room, " drafted tokens", history, ", it writes the tokens ", in_words(off.text),
                  " with probability ", off.first, "; the target alone writes them with ", off.second,
                  ". Is the policy's regime, or the one that the verifier is lossless for, what it says?",
                  hint_of_rounding(off.size()));
    }
    return true;
  }

  // Lets a policy see rounds over a model of 32 tokens and their verdicts.
  static void live(tested_policy<NumberT>& policy, int history) {
    const tiny_model model = wide_models()[0];
    rounds<NumberT> round(model, policy.most_asked());
    std::mt19937 random(7);
    for (int i = 0; i < (history == 2 ? 72 : 8); ++i) {
      traced_chance chance{philox_chance(23, 0, static_cast<std::uint32_t>(i))};
      round.grow(policy, policy.most_asked(), chance, any_start(i));
      policy.observe(round.drafted(), verdict_of(round.drafted(), history, random));
    }
  }

  const tested_policy<NumberT>& policy_;
  tested_verifier<NumberT>& verifier_;
  std::int64_t n_left_;
  double tolerance_;
  coverage covered_;
};

}  // namespace detail

//! Checks a pair of policy and verifier, without checking each of them alone: the last part of check_lossless().
template <class NumberT = double, class PolicyT, class VerifierT>
coverage check_pair(const PolicyT& policy, const VerifierT& verifier, const lossless_options& options = {}) {
  static_assert(compatible(PolicyT::sampling, VerifierT::lossless),
                "the verifier is not lossless for trees of the policy's regime; see concepts/regime.hpp");
  const detail::tested_policy_of<NumberT, PolicyT> tested(policy);
  detail::tested_verifier_of<NumberT, VerifierT> by(verifier);
  return detail::checked_pair<NumberT>(tested, by, options).check();
}

//! Proves a policy, a verifier and the pair of them lossless, as far as the returned coverage says. The policy is
//! checked by check_tree_policy() and the verifier by check_verifier(). Then every outcome of a round of both is run
//! over models of up to 4 tokens, and the texts, of any length, must be distributed as the target alone writes them:
//! over all models with the room that the policy's budget asks for, and over a few of them with every smaller room, and
//! after histories of rejections, of acceptances and of any verdicts, where the policy is told that the text is longer
//! and, after two of the three, that the target samples at another temperature. Over far_models() every outcome is run
//! with room for at most two drafted tokens. Over models of 32 tokens, rounds are run with decisions drawn at random:
//! all keys of policy and verifier are compared, and the texts must be the target's in the mean. A verifier that is for
//! temperature 0 alone (ArgmaxVerifier) must write the target's argmax. NumberT is the type of the rows, float or
//! double.
//!
//!     std::cout << testing::check_lossless(my_policy(), specinfer());
//!
//! Complexity  1 to 4 seconds. The number of outcomes is exponential in the tree's draws: if a policy has more than
//!             max_outcomes, they are run for less room, as the coverage says; give it a budget of about 4 to have all
//! Errors      law_error that names the law that is broken, or the model, the text whose probability differs the most,
//!             and both its probabilities; input_error if a policy breaks a rule that decoders check, too; option_error
//!             if max_outcomes is too few even without drafted tokens
//! Source      docs/algorithms/verifiers.md
template <class NumberT = double, class PolicyT, class VerifierT>
coverage check_lossless(const PolicyT& policy, const VerifierT& verifier, const lossless_options& options = {}) {
  coverage covered = check_tree_policy(policy);
  covered += check_verifier<NumberT>(verifier, options.tolerance > 0 ? options.tolerance : default_tolerance<NumberT>);
  covered += check_pair<NumberT>(policy, verifier, options);
  return covered;
}

}  // namespace espalier::testing
