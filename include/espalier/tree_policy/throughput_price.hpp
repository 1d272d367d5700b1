// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "espalier/cost/cost_model.hpp"

namespace espalier {

//! What passes cost in tokens: those that are written in the same time at the rate of the last rounds. By the renewal theorem a
//! policy writes fastest in the long run if it makes just those passes that are expected to gain more tokens than they cost
//! at the rate that it reaches itself; from a wrong price it still comes to the right one, since better rounds raise it. The
//! rate counts as that of plain decoding at least, which is always to be had.
//!
//! Complexity  O(budget) looks at a curve to open a round, O(1) for all else; no allocation after construction
//! Law         times are the cost model's alone: no clock is read
//! Source      Dinkelbach's method for ratios; the ratio of sums over the last rounds, which fade
class throughput_price {
 public:
  //! Budget in drafted tokens a round.
  throughput_price(cost_model costs, std::int32_t budget)
      : costs_(std::move(costs)), rows_(static_cast<std::size_t>(budget) + 1) {
    reset();
  }

  //! A new text: the rate is taken to be twice that of plain decoding, until it is known.
  void reset() {
    tokens_ = 2 * rounds_to_begin_with;
    seconds_ = rounds_to_begin_with * (std::max)(costs_.target_pass(1, 0), least_seconds);
    unread_ = 0;
    gain_ = 0;
  }

  //! Tokens before the pending one.
  void open(std::int32_t context) { context_ = context; }

  //! A round of at most `limit` drafted tokens.
  //!
  //! Pre         limit <= budget
  void begin_round(std::int32_t limit) {
    const double root = costs_.target_pass(1, context_);
    plain_rate_ = 1 / (std::max)(root, least_seconds);
    rate_ = (std::max)(tokens_per_second(), plain_rate_);
    asked_ = false;
    round_seconds_ = 0;
    rows_[0] = 0;
    // Rounding must not make a further row seem to gain time.
    for (std::size_t n = 1; n <= static_cast<std::size_t>(limit); ++n) {
      const double more = costs_.target_pass(1 + static_cast<std::int32_t>(n), context_) - root;
      rows_[n] = (std::max)(rows_[n - 1], rate_ * more);
    }
  }

  //! Tokens that the target's pass costs for n drafted tokens beyond what it costs for the root alone.
  //!
  //! Pre         n is within the limit of the round
  double of_rows(std::int32_t n) const { return rows_[static_cast<std::size_t>(n)]; }

  //! Tokens that a further draft pass of the round costs, about n nodes.
  double of_pass(std::int32_t n) const { return rate_ * costs_.draft_pass(n, context_); }

  //! Whether drafting, token after token, can gain any time at all: whether it does if each of at most n tokens is accepted.
  //!
  //! Pre         n is within the limit of the round
  bool can_gain(std::int32_t n) const {
    const double draft_pass = costs_.draft_pass(1, context_);
    for (std::int32_t i = 1; i <= n; ++i) {
      if (i > plain_rate_ * (costs_.opening + i * draft_pass) + plain_rate_ / rate_ * of_rows(i)) return true;
    }
    return false;
  }

  //! The next draft pass was made, about n nodes. The first one of a round opens it, and reads what was written since the draft
  //! was last asked.
  void add_pass(std::int32_t n) {
    round_seconds_ += seconds_of_pass(n);
    asked_ = true;
  }

  //! The target's pass over n drafted tokens and the root follows.
  void end_round(std::int32_t n) { round_seconds_ += costs_.target_pass(1 + n, context_); }

  //! The round committed so many tokens.
  void observe(std::int32_t n_tokens) {
    gain_ = n_tokens - plain_rate_ * round_seconds_;
    tokens_ = kept * tokens_ + n_tokens;
    seconds_ = kept * seconds_ + (std::max)(round_seconds_, least_seconds);
    unread_ = asked_ ? 0 : unread_ + n_tokens;
  }

  //! Of the last rounds.
  double tokens_per_second() const { return tokens_ / seconds_; }

  //! Tokens that the last round wrote beyond those of plain decoding in the same time; less than 0 where drafting has lost.
  double gain() const { return gain_; }

  //! Of the last round, as predicted.
  double round_seconds() const { return round_seconds_; }

 private:
  static constexpr double kept = 0.96;  // of the rounds before, at each round
  static constexpr double rounds_to_begin_with = 4;
  static constexpr double least_seconds = 1e-12;

  double seconds_of_pass(std::int32_t n) const {
    return asked_ ? costs_.draft_pass(n, context_) : costs_.opening + costs_.draft_pass(n + unread_, context_);
  }

  cost_model costs_;
  std::vector<double> rows_;  // [budget + 1]
  std::int32_t context_ = 0;
  double tokens_ = 0, seconds_ = 0;  // of the last rounds, faded
  double rate_ = 0;
  double plain_rate_ = 0;  // of plain decoding
  double gain_ = 0;        // of the last round
  double round_seconds_ = 0;
  bool asked_ = false;       // in this round
  std::int32_t unread_ = 0;  // tokens written since the draft was asked
};

}  // namespace espalier
