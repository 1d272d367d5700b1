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

// Checks a verifier on trees of one shape over one model, by running every outcome. Returns false, with nothing
// checked, if there are more than max_outcomes.
template <class NumberT>
bool check_on_shape(tested_verifier<NumberT>& verifier, const drawn_shape& shape, const char* regime_name,
                    tiny_model model, double tolerance, coverage& covered, std::int64_t max_outcomes = INT64_MAX) {
  if (verifier.argmax_only()) model.target = argmax_only(model.target);
  const shape_policy<NumberT> policy(shape);
  verifier.reserve(policy.max_nodes(), model.vocab);
  rounds<NumberT> round(model, policy.max_nodes());
  text_distribution emitted;
  coverage here;
  if (!round.run_all(policy, verifier, policy.max_nodes(), {}, emitted, here, max_outcomes)) return false;
  const text_difference off = largest_difference_from(emitted, round.target_row());
  here.largest_difference = off.size();
  covered += here;
  require_law(off.size() <= tolerance, "the verifier is not lossless for trees that are ", regime_name, ", with ",
              in_words(shape), ": over the tiny model \"", model.name, "\" it writes the tokens ", in_words(off.text),
              " with probability ", off.first, "; the target alone writes them with ", off.second, ".",
              hint_of_rounding(off.size()));
  return true;
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
  const std::vector<tiny_model> models = tiny_models(), farthest = far_models(37), less_far = far_models(19);
  const tiny_model sharp = sharp_draft_model(), steep = steep_draft_model();
  for (const kind& k : kinds) {
    if (!compatible(k.by, lossless)) continue;
    const auto over = [&](const tiny_model& model, std::vector<std::int32_t> draws, bool is_uneven = false,
                          std::int64_t max_outcomes = INT64_MAX) {
      return check_on_shape(verifier, {k.drawn_as, std::move(draws), is_uneven}, k.name, model, tolerance, covered,
                            max_outcomes);
    };
    const auto check = [&](std::int32_t vocab, const std::vector<std::int32_t>& draws, bool is_uneven = false) {
      std::int32_t n_models = 0;
      for (const tiny_model& model : models) {
        if (model.vocab <= vocab) over(model, draws, is_uneven), ++n_models;
      }
      covered.n_models = (std::max)(covered.n_models, n_models);
      covered.vocabulary = (std::max)(covered.vocabulary, vocab);
    };
    const auto draw = [&](int n_rounds, std::vector<std::int32_t> draws) {
      shape_policy<NumberT> policy({k.drawn_as, std::move(draws), false});
      check_drawn_rounds<NumberT>(policy, verifier, policy.max_nodes(), n_rounds, covered);
    };
    // Checks trees that are a path of `depth` single draws with the draws of `end` below it.
    const auto check_below = [&](std::int32_t depth, const std::vector<std::int32_t>& end) {
      std::vector<std::int32_t> draws(static_cast<std::size_t>(depth), 1);
      draws.insert(draws.end(), end.begin(), end.end());
      over(deep_model(depth), draws);
    };
    check(2, {1, 1, 1, 1, 1, 1});
    check(4, {1, 1});
    for (const tiny_model& model : farthest) {
      over(model, model.vocab == 4 ? std::vector<std::int32_t>{1, 1, 1} : std::vector<std::int32_t>{1});
      covered.far_vocabulary = (std::max)(covered.far_vocabulary, model.vocab);
    }
    for (const std::int32_t depth : {4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 62, 65, 128})
      check_below(depth, {1, 1, 1, 1});
    draw(150, {1, 1, 1, 1, 1, 1, 1, 1});
    draw(50, std::vector<std::int32_t>(40, 1));
    if (k.by == regime::single_path) continue;
    check(4, {3});
    check(2, {5});
    check(2, {2, 2, 1});
    check(3, {2, 2}, true);
    for (const tiny_model& model : less_far) {
      if (model.vocab < 10'000) over(model, {2});
    }
    for (const std::int32_t depth : {3, 8, 17, 33, 65})
      check_below(depth, {2, 2});
    over(sharp, {1, 3});
    over(sharp, {2, 3}, true);
    // More and more draws at the root, until there are too many outcomes. Without replacement there are no more draws
    // than tokens.
    const tiny_model& many = k.by == regime::iid ? sharp : steep;
    for (std::int32_t n = 4; n <= (k.by == regime::iid ? 12 : 7) && over(many, {n}, false, 100'000); ++n) {
    }
    draw(150, {6, 2});
    draw(150, {2, 2, 2});
    draw(50, {24});
  }
  return covered;
}

}  // namespace detail

//! Checks a verifier alone, over trees of each regime that it says it is lossless for: paths, uneven trees, many draws
//! at a node. Every outcome is run over tiny_models(), over far_models() with one or two draws at a node, over
//! deep_model() to depth 132, and over sharp_draft_model() or steep_draft_model() for as many draws at the root as
//! 100,000 outcomes allow (6 to 9); the texts must be distributed as the target writes them. Over models of 32 tokens,
//! rounds are run with decisions drawn at random: the texts must be the target's in the mean, each decision must have a
//! key of its own with a purpose other than draft, and equal chances must give equal verdicts.
//!
//!     std::cout << testing::check_verifier(specinfer());
//!
//! Complexity  about a second for a verifier of four regimes
//! Errors      law_error with what is wrong, and where
template <class NumberT = double, class VerifierT>
coverage check_verifier(VerifierT verifier, double tolerance = default_tolerance<NumberT>) {
  detail::tested_verifier_of<NumberT, VerifierT> tested(std::move(verifier));
  return detail::check_verifier<NumberT>(tested, VerifierT::lossless, tolerance);
}

}  // namespace espalier::testing
