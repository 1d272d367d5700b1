// SPDX-License-Identifier: BSL-1.0
// Tested by tests/testing/laws.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "espalier/core/chance.hpp"
#include "espalier/core/philox.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/testing/enumerating_chance.hpp"
#include "espalier/testing/law_error.hpp"

namespace espalier::testing {

//! The chance of the checks of policies and verifiers: it either runs every outcome, as enumerating_chance, or draws by
//! key, as philox_chance. If it draws, it records the keys and the tokens that the policy picks. A key used twice gives
//! two decisions the same number, which no enumeration can detect. A pick() among weights that are all 0 decides
//! nothing, and its key does not count as used.
//!
//! Errors      if it draws: law_error at the second use of a key in a round, and if the policy decides with a purpose
//!             other than draft or the verifier with draft
class traced_chance {
 public:
  static constexpr bool checks_draws = true;

  struct picked_token {
    node_id node;
    token_id token;
    std::size_t n_weights;  // number of weights that the token was picked from
  };

  //! Runs every outcome.
  traced_chance() = default;
  //! Draws with `drawn`.
  explicit traced_chance(philox_chance drawn) : drawn_(drawn) {}

  bool accept(double p, double q, chance_key at = {}) {
    if (!drawn_) return every_.accept(p, q, at);
    record(at);
    return drawn_->accept(static_cast<wide_number>(p), static_cast<wide_number>(q), at);
  }
  template <Weights WeightsT>
  std::int32_t pick(const WeightsT& weights, chance_key at = {}) {
    if (!drawn_) return every_.pick(weights, at);
    const std::int32_t i = drawn_->pick(weights, at);
    if (i < 0) return i;
    record(at);
    if (drafts_) picks_.push_back({at.node, i, weights.size()});
    return i;
  }
  std::int32_t index(std::int32_t n, chance_key at = {}) {
    if (!drawn_) return every_.index(n, at);
    record(at);
    return drawn_->index(n, at);
  }

  bool draws() const { return drawn_.has_value(); }
  //! Marks the beginning of verification: further decisions are the verifier's.
  void start_verifying() { drafts_ = false; }
  //! The policy's picks, in order: a token where it picked from a row of the vocabulary, an index where it picked from
  //! other weights. Empty if the chance runs every outcome.
  const std::vector<picked_token>& picks() const { return picks_; }
  std::int64_t n_keys() const { return static_cast<std::int64_t>(used_.size()); }

  //! Probability of the outcomes since the start of this run; 1 where the chance draws.
  double probability() const { return drawn_ ? 1.0 : every_.probability(); }
  //! Turns to the next outcome; returns false when all have been run.
  bool next() { return !drawn_ && every_.next(); }

 private:
  void record(chance_key at) {
    require_law((at.use == purpose::draft) == drafts_, drafts_ ? "the policy" : "the verifier",
                " decides something at node ", at.node, ", slot ", at.slot, " for a purpose that is ",
                drafts_ ? "not draft." : "draft.");
    require_law(used_.insert({at.node, at.slot, at.use}).second, drafts_ ? "the policy" : "the verifier",
                " decides two things with one key: node ", at.node, ", slot ", at.slot, ", purpose ",
                static_cast<int>(at.use), ". Both get the same random number.");
  }

  enumerating_chance every_;
  std::optional<philox_chance> drawn_;
  bool drafts_ = true;
  std::set<std::tuple<node_id, std::int32_t, purpose>> used_;
  std::vector<picked_token> picks_;
};

static_assert(Chance<traced_chance>);

}  // namespace espalier::testing
