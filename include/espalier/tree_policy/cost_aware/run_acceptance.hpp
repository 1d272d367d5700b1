// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

//! Predicts how far the runs of a SequenceDrafter are accepted in a text, and so how much of a run is worth its rows.
//!
//! The probability that a token is accepted, once those before it are, depends on the length of the match before it:
//! the match of the run, and the tokens of the run up to it. For each of the lengths 0, 1, 2, 3, 4 to 7, 8 to 15, 16 to
//! 31 and more there is the share of tokens that were right recently, which begins with a prior.
//!
//! A run costs nothing to ask for, and its next token can be compared with the written one whether it was drafted or
//! not. So plain rounds teach as much as others: no trial is needed to find out that a text begins to copy.
//!
//! Complexity  O(run) a round; no allocation after construction
//! Law         nothing but observe() and reset() changes the predictions
class run_acceptance {
 public:
  //! Makes room for runs of up to `longest` tokens.
  explicit run_acceptance(std::int32_t longest) : run_(static_cast<std::size_t>(longest)) {}

  //! Forgets all observations.
  void reset() {
    right_ = seen_ = {};
    begin_round();
  }

  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    for (std::size_t i = 0; i < n_lengths; ++i) {
      archive(right_[i], seen_[i]);
      archive.require(right_[i] >= 0 && seen_[i] >= right_[i]);
    }
  }

  //! The probability that the token after a match of this length is accepted; above 0 and below 1.
  double probability(std::int32_t match) const {
    const std::size_t i = length_of(match);
    return (right_[i] + prior_weight * priors[i]) / (seen_[i] + prior_weight);
  }

  //! Begins a round in which no run is known yet.
  void begin_round() {
    n_run_ = 0;
    is_known_ = false;
  }
  //! True if a drafter was asked for a run in this round.
  bool is_known() const { return is_known_; }

  //! Number of tokens of this run to draft, at most `limit`, at which their expected gain, less the price of their
  //! rows, is most. of_rows(n) is the price of n rows, in tokens. Keeps the run for observe().
  template <class PriceT>
  std::int32_t worth(const token_run& run, std::int32_t limit, const PriceT& of_rows) {
    is_known_ = true;
    match_ = run.match;
    const std::span<const token_id> tokens = run.tokens.first((std::min)(run.tokens.size(), run_.size()));
    std::copy(tokens.begin(), tokens.end(), run_.begin());
    n_run_ = static_cast<std::int32_t>(tokens.size());
    double reach = 1, expected = 0, best = 0;
    std::int32_t n_best = 0;
    for (std::int32_t n = 1; n <= (std::min)(n_run_, limit); ++n) {
      reach *= probability(match_ + n - 1);
      expected += reach;
      const double gain = expected - of_rows(n);
      if (gain > best) best = gain, n_best = n;
    }
    return n_best;
  }

  //! Ends the round: compares the run with the written tokens.
  void observe(tree_view tree, verdict v) {
    std::int32_t wrong = n_run_;  // index of the first token of the run that was not written
    const auto compare = [&](std::int32_t i, token_id written) {
      if (i < n_run_ && run_[static_cast<std::size_t>(i)] != written) wrong = (std::min)(wrong, i);
    };
    compare(tree.depth[v.accepted], v.token);
    for (node_id u = v.accepted; u != root_node; u = tree.parent[u])
      compare(tree.depth[u] - 1, tree.token[u]);
    const std::int32_t n_seen = (std::min)({wrong + 1, n_run_, tree.depth[v.accepted] + 1});
    for (std::int32_t i = 0; i < n_seen; ++i)
      add(match_ + i, i != wrong);
  }

 private:
  static constexpr std::size_t n_lengths = 8;
  static constexpr double kept = 0.98;  // share of the weight of earlier tokens that is kept at each token
  static constexpr double prior_weight = 3;
  static constexpr std::array<double, n_lengths> priors{0.2, 0.2, 0.3, 0.4, 0.5, 0.75, 0.9, 0.97};

  static std::size_t length_of(std::int32_t match) {
    if (match < 4) return static_cast<std::size_t>(match);
    return (std::min)(static_cast<std::size_t>(std::bit_width(static_cast<std::uint32_t>(match))) + 1, n_lengths - 1);
  }

  void add(std::int32_t match, bool is_right) {
    const std::size_t i = length_of(match);
    right_[i] = kept * right_[i] + (is_right ? 1 : 0);
    seen_[i] = kept * seen_[i] + 1;
  }

  std::array<double, n_lengths> right_{}, seen_{};
  std::vector<token_id> run_;  // [longest] the run of this round
  std::int32_t n_run_ = 0;
  std::int32_t match_ = 0;
  bool is_known_ = false;
};

}  // namespace espalier
