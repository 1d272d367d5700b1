// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/verifier.hpp"
#include "espalier/testing/coverage.hpp"
#include "espalier/testing/law_error.hpp"
#include "espalier/testing/rounds.hpp"
#include "espalier/testing/tested_parts.hpp"
#include "espalier/testing/text_distribution.hpp"
#include "espalier/testing/tiny_model.hpp"

namespace espalier::testing {

namespace detail {

// Checks a verifier on trees of one shape: every outcome over the models of at most `vocab` tokens.
template <class NumberT>
void check_on_shape(tested_verifier<NumberT>& verifier, const drawn_shape& shape, const char* regime_name,
                    std::int32_t vocab, double tolerance, coverage& covered) {
  const shape_policy<NumberT> policy(shape);
  verifier.reserve(policy.max_nodes(), vocab);
  std::int32_t n_models = 0;
  for (tiny_model model : tiny_models()) {
    if (model.vocab > vocab) continue;
    if (verifier.argmax_only()) model.target = argmax_only(model.target);
    rounds<NumberT> round(model, policy.max_nodes());
    text_distribution emitted;
    std::int64_t n_left = INT64_MAX;
    round.run_all(policy, verifier, policy.max_nodes(), {}, emitted, covered, n_left);
    const text_difference off = largest_difference_from(emitted, round.target_row());
    covered.largest_difference = (std::max)(covered.largest_difference, off.size());
    std::string draws;
    for (const std::int32_t n : shape.draws)
      draws += (draws.empty() ? "" : ", ") + std::to_string(n);
    require_law(off.size() <= tolerance, "the verifier is not lossless for trees that are ", regime_name, ", with ",
                draws, " draws at the nodes of depth 0, 1, ..: over the tiny model \"", model.name,
                "\" it writes the tokens ", in_words(off.text), " with probability ", off.first,
                "; the target alone writes them with ", off.second, ".");
    ++n_models;
  }
  covered.n_models = (std::max)(covered.n_models, n_models);
  covered.vocabulary = (std::max)(covered.vocabulary, vocab);
}

template <class NumberT>
coverage check_verifier(tested_verifier<NumberT>& verifier, regime lossless, double tolerance) {
  struct kind {
    regime by, drawn_as;
    const char* name;
  };
  constexpr kind kinds[] = {{regime::single_path, regime::iid, "a single path"},
                            {regime::iid, regime::iid, "drawn independently (iid)"},
                            {regime::without_replacement, regime::without_replacement, "drawn without replacement"},
                            {regime::deterministic, regime::deterministic, "of the most probable tokens"}};
  coverage covered;
  for (const kind& k : kinds) {
    if (!compatible(k.by, lossless)) continue;
    const auto check = [&](std::int32_t vocab, std::vector<std::int32_t> draws, bool is_uneven = false) {
      check_on_shape(verifier, {k.drawn_as, std::move(draws), is_uneven}, k.name, vocab, tolerance, covered);
    };
    const auto draw = [&](int n_rounds, std::vector<std::int32_t> draws) {
      shape_policy<NumberT> policy({k.drawn_as, std::move(draws), false});
      check_drawn_rounds<NumberT>(policy, verifier, policy.max_nodes(), n_rounds, covered);
    };
    check(2, {1, 1, 1, 1, 1, 1});
    check(4, {1, 1});
    draw(150, {1, 1, 1, 1, 1, 1, 1, 1});
    if (k.by == regime::single_path) continue;
    check(4, {3});
    check(2, {5});
    check(2, {2, 2, 1});
    check(3, {2, 2}, true);
    draw(150, {6, 2});
    draw(150, {2, 2, 2});
  }
  return covered;
}

}  // namespace detail

//! Checks a verifier alone, over trees of each regime that it says to be lossless for, drawn here: chains to depth 8,
//! up to 6 draws at a node, trees that are uneven. Over models of up to 4 tokens every outcome is run, and the texts
//! must be distributed as the target writes them. Over models of 32 tokens rounds are drawn: the texts must be the
//! target's in the mean, each decision must have a key of its own with a purpose other than draft, and equal chances
//! must give equal verdicts.
//!
//!     std::cout << testing::check_verifier(specinfer());
//!
//! Complexity  about a second for a verifier of four regimes
//! Errors      law_error with what is wrong, and where
template <class NumberT = double, class VerifierT>
coverage check_verifier(VerifierT verifier, double tolerance = 1e-12) {
  detail::tested_verifier_of<NumberT, VerifierT> tested(std::move(verifier));
  return detail::check_verifier<NumberT>(tested, VerifierT::lossless, tolerance);
}

}  // namespace espalier::testing
