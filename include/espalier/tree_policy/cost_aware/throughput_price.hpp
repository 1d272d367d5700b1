// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "espalier/cost/cost_model.hpp"

namespace espalier {

//! The price of a pass, in tokens: as many as would be written in the same time at the rate of the last rounds.
//!
//! In the long run the policy writes fastest that makes exactly those passes which are expected to gain more tokens
//! than they cost, priced at the rate that it reaches itself (renewal theorem). A wrong price comes right: better
//! rounds raise the rate, and with it the price. The rate is never taken to be less than that of plain decoding, which
//! can be had at any time.
//!
//! Complexity  O(budget) looks at a curve to open a round, O(1) for all else; no allocation after construction
//! Law         times are the cost model's alone: no clock is read
//! Source      Dinkelbach's method for ratios. The rate is the ratio of two sums over the rounds, in which old rounds
//!             lose weight
class throughput_price {
 public:
  //! Budget in drafted tokens a round.
  throughput_price(cost_model costs, std::int32_t budget)
      : costs_(std::move(costs)), rows_(static_cast<std::size_t>(budget) + 1) {
    reset();
  }

  //! A new text begins: the rate is taken to be twice that of plain decoding, until rounds tell.
  void reset() {
    tokens_ = 2 * rounds_to_begin_with;
    seconds_ = rounds_to_begin_with * (std::max)(costs_.target_pass(1, 0), least_seconds);
    unread_ = 0;
    gain_ = 0;
  }

  //! What a round leaves to the next.
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    archive(tokens_, seconds_, unread_, gain_);
    archive.require(tokens_ >= 0 && seconds_ > 0 && unread_ >= 0);
  }

  //! The text's length, in tokens before the pending one.
  void open(std::int32_t context) { context_ = context; }

  //! A round begins, of at most `limit` drafted tokens.
  //!
  //! Pre         limit <= budget
  void begin_round(std::int32_t limit) {
    const double root = costs_.target_pass(1, context_);
    plain_rate_ = 1 / (std::max)(root, least_seconds);
    rate_ = (std::max)(tokens_per_second(), plain_rate_);
    asked_ = false;
    round_seconds_ = 0;
    rows_[0] = 0;
    // Never falling: a further row cannot gain time, whatever rounding says.
    for (std::size_t n = 1; n <= static_cast<std::size_t>(limit); ++n) {
      const double more = costs_.target_pass(1 + static_cast<std::int32_t>(n), context_) - root;
      rows_[n] = (std::max)(rows_[n - 1], rate_ * more);
    }
  }

  //! What n drafted tokens cost in the target's pass, beyond the root alone.
  //!
  //! Pre         n is within the limit of the round
  double of_rows(std::int32_t n) const { return rows_[static_cast<std::size_t>(n)]; }

  //! What a further draft pass over n nodes costs.
  double of_pass(std::int32_t n) const { return rate_ * costs_.draft_pass(n, context_); }

  //! Whether drafting can gain any time at all: whether a chain of some length up to n would, if all of it were
  //! accepted.
  //!
  //! Pre         n is within the limit of the round
  bool can_gain(std::int32_t n) const {
    const double draft_pass = costs_.draft_pass(1, context_);
    for (std::int32_t i = 1; i <= n; ++i) {
      if (i > plain_rate_ * (costs_.opening + i * draft_pass) + plain_rate_ / rate_ * of_rows(i)) return true;
    }
    return false;
  }

  //! A draft pass over n nodes is made. The first one of a round costs more: it opens the round, and reads what was
  //! written since the draft was last asked.
  void add_pass(std::int32_t n) {
    round_seconds_ += seconds_of_pass(n);
    asked_ = true;
  }

  //! The target's pass over the root and n drafted tokens follows.
  void end_round(std::int32_t n) { round_seconds_ += costs_.target_pass(1 + n, context_); }

  //! The round is over and has committed n_tokens.
  void observe(std::int32_t n_tokens) {
    gain_ = n_tokens - plain_rate_ * round_seconds_;
    tokens_ = kept * tokens_ + n_tokens;
    seconds_ = kept * seconds_ + (std::max)(round_seconds_, least_seconds);
    unread_ = asked_ ? 0 : unread_ + n_tokens;
  }

  //! The rate of the last rounds, in the seconds of the cost model.
  double tokens_per_second() const { return tokens_ / seconds_; }

  //! How many more tokens the last round wrote than plain decoding would have written in its time; below 0 where it
  //! lost.
  double gain() const { return gain_; }

  //! What the cost model says the last round took.
  double round_seconds() const { return round_seconds_; }

 private:
  static constexpr double kept = 0.96;  // of the weight of earlier rounds, at each round
  static constexpr double rounds_to_begin_with = 4;
  static constexpr double least_seconds = 1e-12;

  double seconds_of_pass(std::int32_t n) const {
    return asked_ ? costs_.draft_pass(n, context_) : costs_.opening + costs_.draft_pass(n + unread_, context_);
  }

  cost_model costs_;
  std::vector<double> rows_;  // [budget + 1]
  std::int32_t context_ = 0;
  double tokens_ = 0, seconds_ = 0;  // weighted sums over the rounds
  double rate_ = 0;                  // tokens a second, of this round's prices
  double plain_rate_ = 0;            // the same of plain decoding
  double gain_ = 0;                  // of the last round
  double round_seconds_ = 0;
  bool asked_ = false;       // in this round
  std::int32_t unread_ = 0;  // tokens written since the draft was asked
};

}  // namespace espalier
