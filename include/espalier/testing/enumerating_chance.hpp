// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"

namespace espalier {

//! Chance for proofs: a procedure is run once for every sequence of outcomes that can occur, and the chance knows the
//! probability of each. Keys are ignored: each call is a decision of its own. The procedure's result, weighted by
//! probability() and summed over all runs, is its exact distribution.
//!
//!     enumerating_chance chance;
//!     do { distribution[procedure(chance)] += chance.probability(); } while (chance.next());
//!
//! Complexity  runs: the number of distinct outcome sequences
//! Pre         the procedure depends on nothing random but this chance
//! Law         the probabilities of all runs add up to 1
//! Errors      numeric_error from a decision without a possible outcome, such as accept() with a probability that is
//!             NaN; but pick() returns -1 if no weight is above 0
class enumerating_chance {
 public:
  bool accept(double p, double q, chance_key = {}) {
    const double yes = p <= 0 ? 0.0 : (p >= q ? 1.0 : p / q);
    return decide({yes, 1.0 - yes}) == 0;
  }

  template <Weights WeightsT>
  std::int32_t pick(const WeightsT& weights, chance_key = {}) {
    std::vector<double> distribution;
    for (std::size_t i = 0; i < weights.size(); ++i)
      distribution.push_back(static_cast<double>(weights[i]));
    double total = 0;
    for (const double w : distribution)
      total += w > 0 ? w : 0.0;
    for (double& w : distribution)
      w = w > 0 ? w / total : 0.0;
    return total > 0 ? decide(std::move(distribution)) : -1;
  }

  std::int32_t index(std::int32_t n, chance_key = {}) {
    return decide(std::vector<double>(static_cast<std::size_t>(n), 1.0 / n));
  }

  //! Probability of the outcomes since the start of this run.
  double probability() const {
    double product = 1;
    for (std::size_t i = 0; i < depth_; ++i)
      product *= trail_[i].distribution[static_cast<std::size_t>(trail_[i].outcome)];
    return product;
  }

  //! Turns to the next sequence of outcomes; returns false when all have been run.
  bool next() {
    trail_.resize(depth_);
    depth_ = 0;
    while (!trail_.empty()) {
      decision& last = trail_.back();
      if (const std::int32_t other = possible(last.distribution, last.outcome + 1); other >= 0) {
        last.outcome = other;
        return true;
      }
      trail_.pop_back();
    }
    return false;
  }

 private:
  struct decision {
    std::vector<double> distribution;
    std::int32_t outcome;
  };

  static std::int32_t possible(const std::vector<double>& distribution, std::int32_t from) {
    for (auto i = static_cast<std::size_t>(from); i < distribution.size(); ++i) {
      if (distribution[i] > 0) return static_cast<std::int32_t>(i);
    }
    return -1;
  }

  std::int32_t decide(std::vector<double> distribution) {
    if (depth_ == trail_.size()) {
      const std::int32_t first = possible(distribution, 0);
      if (first < 0) raise<numeric_error>("no outcome is possible: every probability is 0 or not a number.");
      trail_.push_back({std::move(distribution), first});
    }
    return trail_[depth_++].outcome;
  }

  std::vector<decision> trail_;
  std::size_t depth_ = 0;
};

static_assert(Chance<enumerating_chance>);

}  // namespace espalier
