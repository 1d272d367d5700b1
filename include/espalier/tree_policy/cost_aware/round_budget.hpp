// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/cost/cost_model.hpp"

namespace espalier {

//! What passes cost a round, in tokens: as many as would be written in the same time at the rate of the last rounds.
//! The budget of one text, or of all texts that are written in the same passes.
//!
//! In the long run a policy writes fastest that makes exactly those passes which are expected to gain more tokens than
//! they cost, priced at the rate that it reaches itself (renewal theorem). A wrong price comes right: better rounds
//! raise the rate, and with it the price. The rate is never taken to be less than that of plain decoding, which can be
//! had at any time.
//!
//! Many texts share what a pass costs, but each has a context of its own to be read (cost_curve::of_texts). A row's
//! price is what it adds to a pass that has the others' rows, as many as they lately had. A further draft pass is made
//! if all that texts expect to gain from it is more than it costs; then those ask that gain.
//!
//! Complexity  begin: O(budget) looks at curves, O(1) for all else; no allocation after construction
//! Law         times are the cost model's alone: no clock is read
//! Source      Dinkelbach's method for ratios. The rate is the ratio of two sums over the rounds, in which old rounds
//!             lose weight
class round_budget {
 public:
  static constexpr std::size_t max_ahead = 16;  //!< levels that are looked ahead
  //! Expected gain of a text in tokens, if it is asked about one level more, two levels more, ...
  using gains = std::array<double, max_ahead>;

  //! Budget in drafted tokens a round of one text.
  round_budget(cost_model costs, std::int32_t budget)
      : costs_(std::move(costs)), rows_(static_cast<std::size_t>(budget) + 1) {
    asked_.reserve(static_cast<std::size_t>(budget) + 1);
    askers_.reserve(static_cast<std::size_t>(budget) + 1);
    reset();
  }

  //! Another text begins: the rate is taken to be twice that of plain decoding, until rounds tell.
  void reset() {
    tokens_ = 2 * rounds_to_begin_with;
    plain_tokens_ = rounds_to_begin_with;
    drafted_ = 0;
    share_ = usual_share;
  }

  //! What a round leaves to the next.
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    archive(tokens_, plain_tokens_, drafted_, share_);
    archive.require(tokens_ >= 0 && plain_tokens_ > 0 && drafted_ >= 0 && share_ >= 0 && share_ <= 1);
  }

  //! A round of n texts begins. Their caches hold `context` tokens each. The same pass takes `n_prompt_rows` of
  //! prompts, which `n_reading` other texts are about to go on from.
  void begin(std::int32_t n_texts, std::int32_t context, std::int32_t n_reading = 0, std::int32_t n_prompt_rows = 0) {
    n_texts_ = n_texts;
    context_ = context;
    n_roots_ = n_texts + n_prompt_rows;
    plain_tokens_a_second_ = rate_of(n_texts, context);
    // Time that is lost is lost to all texts, whatever they do in this round.
    plain_rate_ = rate_of(n_texts + n_reading, context);
    rate_ = plain_rate_ * (std::max)(tokens_ / plain_tokens_, 1.0);
    asked_.clear();
    askers_.clear();
    n_rows_ = n_written_ = 0;
    offered_ = {};
    levels_ = 0;
    // Never falling: a further row cannot gain time, whatever rounding says.
    const auto others = n_roots_ + static_cast<std::int32_t>(drafted_ * (n_texts - 1) + 0.5);
    const double before = costs_.target_pass(others, context_);
    rows_[0] = 0;
    for (std::size_t n = 1; n < rows_.size(); ++n) {
      const double more = costs_.target_pass(others + static_cast<std::int32_t>(n), context_) - before;
      rows_[n] = (std::max)(rows_[n - 1], rate_ * more);
    }
    least_chain_ = (std::min)(least_chain(1), least_chain(n_texts));
  }

  //! What n drafted tokens of a text cost in the target's pass, beyond the root alone.
  //!
  //! Pre         n is at most the budget
  double of_rows(std::int32_t n) const { return rows_[static_cast<std::size_t>(n)]; }

  //! A text's part of a further draft pass over n of its nodes, where all texts want as many.
  double of_pass(std::int32_t n) const {
    return rate_ * costs_.draft_pass.of_texts(n_texts_, n * n_texts_, context_) / n_texts_;
  }
  //! What n nodes of a text add to a pass that is made for one of them and for the other texts.
  double of_nodes(std::int32_t n) const {
    return rate_ * (costs_.draft_pass(n_texts_ - 1 + n, context_) - costs_.draft_pass(n_texts_, context_));
  }

  //! Whether drafting can gain any time at all: whether chains of some length up to n would, in one text or in all, if
  //! all of them were accepted.
  bool can_gain(std::int32_t n) const { return n >= least_chain_; }

  //! Whether a text that is about to be drafted for gains more than it costs to have the draft read it first: `unread`
  //! tokens of it, where n texts are written and this one goes on for `left` tokens more. What is gained a token is
  //! what chains would gain whose tokens are accepted as often as first children lately were.
  bool worth_reading(std::int32_t n_texts, std::int32_t context, std::int32_t unread, std::int32_t left) const {
    const double plain = rate_of(n_texts, context), draft = costs_.draft_pass.of_texts(n_texts, n_texts, context);
    double tokens = 1, level = 1, rate = plain;
    for (std::int32_t m = 1; m < static_cast<std::int32_t>((std::min)(max_ahead, rows_.size())); ++m) {
      tokens += level *= share_;
      const double seconds =
          costs_.target_pass.of_texts(n_texts, n_texts * (1 + m), context) + costs_.opening + m * draft;
      rate = (std::max)(rate, n_texts * tokens / (std::max)(seconds, least_seconds));
    }
    return left * (1 - plain / rate) > plain * costs_.draft_pass(unread, 0);
  }

  //! A first child was looked at.
  void add_first_child(bool accepted) { share_ += share_weight * ((accepted ? 1 : 0) - share_); }

  //! What a text would gain from further levels, without what their passes cost beyond of_nodes(). Gains below 0 are
  //! none.
  void offer(const gains& of_levels) {
    for (std::size_t m = 0; m < max_ahead; ++m) {
      if (of_levels[m] > 0) offered_[m].gain += of_levels[m], ++offered_[m].n_texts;
    }
  }

  //! After the offers of all texts: how many levels ahead pays most; 0 where none pays.
  std::size_t decide() {
    double most = 0;
    levels_ = 0;
    for (std::size_t m = 0; m < max_ahead; ++m) {
      const std::int32_t n = offered_[m].n_texts;
      const double passes = static_cast<double>(m + 1) * rate_ * costs_.draft_pass.of_texts(n, n, context_);
      if (offered_[m].gain - passes > most) most = offered_[m].gain - passes, levels_ = m + 1;
    }
    offered_ = {};
    return levels_;
  }
  //! What was decided.
  std::size_t levels() const { return levels_; }

  //! A text asks about n nodes in this level (0: the root's), all of them at once, and reads `unread` tokens that the
  //! draft has not seen.
  void add_nodes(std::size_t level, std::int32_t n, std::int32_t unread = 0) {
    if (asked_.size() <= level) {
      asked_.resize(level + 1, 0);
      askers_.resize(level + 1, 0);
    }
    asked_[level] += n + unread;
    ++askers_[level];
  }

  //! A text has drafted n tokens.
  void add_rows(std::int32_t n) { n_rows_ += n; }

  //! A text has written n tokens.
  void add_tokens(std::int32_t n) { n_written_ += n; }

  //! A text's part of the seconds of this round beyond those of plain decoding: `asked` are its nodes by level, those
  //! that it read included, `rows` its drafted tokens.
  double seconds_of(std::span<const std::int32_t> asked, std::int32_t rows) const {
    double seconds = 0;
    for (std::size_t level = 0; level < asked.size(); ++level)
      seconds += seconds_of_level(level) * asked[level] / (std::max)(asked_[level], std::int32_t{1});
    if (rows > 0) {
      const double more = costs_.target_pass(n_roots_ + n_rows_, context_) - costs_.target_pass(n_roots_, context_);
      seconds += more * rows / (std::max)(n_rows_, rows);
    }
    return seconds;
  }

  //! Tokens that a text has gained over plain decoding: one that has written n of them in a round of which this part of
  //! the seconds was its own; below 0 where it lost.
  double gain(std::int32_t n, double seconds) const { return n - 1 - plain_rate_ * seconds; }

  //! The round is over.
  void end() {
    if (n_texts_ == 0) return;
    tokens_ = kept * tokens_ + n_written_;
    const double prompts = costs_.target_pass(n_roots_, context_) - costs_.target_pass(n_texts_, context_);
    const double plain = plain_tokens_a_second_ * (round_seconds() - prompts);
    plain_tokens_ = kept * plain_tokens_ + (std::max)(plain, least_seconds);
    drafted_ = kept_rows * drafted_ + (1 - kept_rows) * n_rows_ / n_texts_;
  }

  //! The rate of the last rounds, in the seconds of the cost model.
  double tokens_per_second() const { return plain_rate_ * tokens_ / plain_tokens_; }

  //! What the cost model says of this round.
  double round_seconds() const {
    double seconds = costs_.target_pass.of_texts(n_texts_, n_roots_ + n_rows_, context_);
    for (std::size_t level = 0; level < asked_.size(); ++level)
      seconds += seconds_of_level(level);
    return seconds;
  }

 private:
  static constexpr double kept = 0.96;  // of the weight of earlier rounds, at each round
  static constexpr double kept_rows = 0.8;
  static constexpr double usual_share = 0.75;
  static constexpr double share_weight = 0.01;
  static constexpr double rounds_to_begin_with = 4;
  static constexpr double least_seconds = 1e-12;

  struct offers {
    double gain = 0;
    std::int32_t n_texts = 0;
  };

  // Tokens a second of plain decoding.
  double rate_of(std::int32_t n_texts, std::int32_t context) const {
    return n_texts / (std::max)(costs_.target_pass.of_texts(n_texts, n_texts, context), least_seconds);
  }

  // The first level opens the round.
  double seconds_of_level(std::size_t level) const {
    return costs_.draft_pass.of_texts(askers_[level], asked_[level], context_) +
           (level == 0 && asked_[0] > 0 ? costs_.opening : 0.0);
  }

  // The shortest chains that gain time in k texts, if all of them are accepted.
  std::int32_t least_chain(std::int32_t k) const {
    const double root = costs_.target_pass(n_roots_, context_), pass = costs_.draft_pass.of_texts(k, k, context_);
    const auto budget = static_cast<std::int32_t>(rows_.size()) - 1;
    double rows = 0;
    for (std::int32_t i = 1; i <= budget; ++i) {
      rows = (std::max)(rows, costs_.target_pass(n_roots_ + i * k, context_) - root);
      if (i * k > plain_rate_ * (costs_.opening + i * pass + rows)) return i;
    }
    return budget + 1;
  }

  cost_model costs_;
  std::vector<double> rows_;              // [budget + 1]
  double tokens_ = 0, plain_tokens_ = 0;  // weighted sums over rounds, the second of plain decoding in the same time
  double share_ = usual_share;            // of first children that are accepted, once their parents are
  double drafted_ = 0;                    // tokens a text and round, lately
  double rate_ = 0, plain_rate_ = 0;      // tokens a second, of this round's prices and of plain decoding by all texts
  double plain_tokens_a_second_ = 0;      // by those that are written in this round
  std::int32_t n_texts_ = 0, n_roots_ = 0, context_ = 0, least_chain_ = 0;
  std::vector<std::int32_t> asked_;          // by level, of all texts
  std::vector<std::int32_t> askers_;         // by level, texts
  std::int32_t n_rows_ = 0, n_written_ = 0;  // of all texts
  std::array<offers, max_ahead> offered_{};
  std::size_t levels_ = 0;
};

}  // namespace espalier
