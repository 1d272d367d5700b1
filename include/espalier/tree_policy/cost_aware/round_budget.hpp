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

//! Prices the passes of a round in tokens: the price of a pass or row is the number of tokens that would be written in
//! its time at the rate of the last rounds. One object serves one text, or all texts that are written in the same
//! passes. The constructor's `budget` is another thing: the greatest number of draws of one tree.
//!
//! In the long run a policy writes fastest if it makes exactly those passes that are expected to gain more tokens than
//! they cost, priced at the rate that it reaches itself (renewal theorem). A wrong price corrects itself: better rounds
//! raise the rate, and with it the price. The rate is never taken to be less than that of plain decoding, which is
//! possible at any time.
//!
//! Texts that are written in the same pass share its cost, but the pass reads the context of each text
//! (cost_curve::of_texts). The price of a row is what the row adds to a pass that already has the rows of the other
//! texts; these are taken to be as many as in recent rounds. A further draft pass is made if the sum of the gains that
//! texts expect from it is more than its price. It then covers the texts that expect a gain, and no others.
//!
//! Complexity  begin: O(budget) evaluations of curves; seconds_of, round_seconds, end: O(levels); all else O(1). No
//!             allocation after construction
//! Law         times are the cost model's alone: no clock is read
//! Source      Dinkelbach's method for ratios. The rate is the ratio of two sums over the rounds, in which old rounds
//!             lose weight
class round_budget {
 public:
  static constexpr std::size_t max_ahead = 16;  //!< levels that texts look ahead at most
  //! Expected gain of a text in tokens, if the draft is asked about one level more, two levels more, ...
  using gains = std::array<double, max_ahead>;

  //! Makes a budget for texts that draft up to `budget` tokens in a round.
  round_budget(cost_model costs, std::int32_t budget)
      : costs_(std::move(costs)), rows_(static_cast<std::size_t>(budget) + 1) {
    asked_.reserve(static_cast<std::size_t>(budget) + 1);
    askers_.reserve(static_cast<std::size_t>(budget) + 1);
    reset();
  }

  //! Begins another text. Its rate is taken to be twice that of plain decoding, until rounds have shown it.
  void reset() {
    tokens_ = 2 * rounds_to_begin_with;
    plain_tokens_ = rounds_to_begin_with;
    drafted_ = 0;
    share_ = usual_share;
  }

  //! Saves or loads the state that a round leaves to the next.
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    archive(tokens_, plain_tokens_, drafted_, share_);
    archive.require(tokens_ >= 0 && plain_tokens_ > 0 && drafted_ >= 0 && share_ >= 0 && share_ <= 1);
  }

  //! Begins a round of n_texts texts whose caches hold `context` tokens each. The target's pass of this round also
  //! takes n_prompt_rows rows of the prompts of n_reading other texts.
  void begin(std::int32_t n_texts, std::int32_t context, std::int32_t n_reading = 0, std::int32_t n_prompt_rows = 0) {
    n_texts_ = n_texts;
    context_ = context;
    n_roots_ = n_texts + n_prompt_rows;
    plain_tokens_a_second_ = rate_of(n_texts, context);
    // Lost time is lost to all texts, whether they write or read in this round.
    plain_rate_ = rate_of(n_texts + n_reading, context);
    rate_ = plain_rate_ * (std::max)(tokens_ / plain_tokens_, 1.0);
    asked_.clear();
    askers_.clear();
    n_rows_ = n_written_ = 0;
    offered_ = {};
    levels_ = 0;
    // The prices never fall: a further row cannot gain time, whatever rounding says.
    const auto others = n_roots_ + static_cast<std::int32_t>(drafted_ * (n_texts - 1) + 0.5);
    const double before = costs_.target_pass(others, context_);
    rows_[0] = 0;
    for (std::size_t n = 1; n < rows_.size(); ++n) {
      const double more = costs_.target_pass(others + static_cast<std::int32_t>(n), context_) - before;
      rows_[n] = (std::max)(rows_[n - 1], rate_ * more);
    }
    least_chain_ = (std::min)(least_chain(1), least_chain(n_texts));
  }

  //! Price of n drafted tokens of a text in the target's pass, beyond the root alone.
  //!
  //! Pre         n is at most the budget
  double of_rows(std::int32_t n) const { return rows_[static_cast<std::size_t>(n)]; }

  //! A text's share of the price of a further draft pass over n nodes of each text.
  double of_pass(std::int32_t n) const {
    return rate_ * costs_.draft_pass.of_texts(n_texts_, n * n_texts_, context_) / n_texts_;
  }
  //! Price of n nodes of a text in a draft pass that is made in any case, beyond the price of one node. The pass also
  //! has one node of each other text.
  double of_nodes(std::int32_t n) const {
    return rate_ * (costs_.draft_pass(n_texts_ - 1 + n, context_) - costs_.draft_pass(n_texts_, context_));
  }

  //! True if a chain of at most n tokens, all accepted, would save time, either in one text or in all texts at once.
  bool can_gain(std::int32_t n) const { return n >= least_chain_; }

  //! True if drafting for a text is expected to gain more than it costs to read first, in one draft pass, the `unread`
  //! tokens of the text that the draft has not read yet. n_texts texts are written, with `context` tokens in the cache
  //! of each; this text goes on for `left` tokens. The expected gain is that of chains whose tokens are accepted as
  //! often as first children recently were.
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

  //! Learns whether a first child was accepted, after its parent was.
  void add_first_child(bool accepted) { share_ += share_weight * ((accepted ? 1 : 0) - share_); }

  //! Adds the tokens that a text expects to gain from 1, 2, ... further levels. The text has already subtracted
  //! of_nodes() for each pass; decide() subtracts the rest of the price of the passes. Gains below 0 do not count.
  void offer(const gains& of_levels) {
    for (std::size_t m = 0; m < max_ahead; ++m) {
      if (of_levels[m] > 0) offered_[m].gain += of_levels[m], ++offered_[m].n_texts;
    }
  }

  //! Decides how many further levels pay most; 0 if none pays. Call it after all texts have made their offers.
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
  //! The number of levels that decide() has chosen.
  std::size_t levels() const { return levels_; }

  //! Notes that the draft is asked about n nodes of a text in this level (level 0 is the root alone), and that it reads
  //! `unread` tokens of the text for that. Call it once for each text in a level.
  void add_nodes(std::size_t level, std::int32_t n, std::int32_t unread = 0) {
    if (asked_.size() <= level) {
      asked_.resize(level + 1, 0);
      askers_.resize(level + 1, 0);
    }
    asked_[level] += n + unread;
    ++askers_[level];
  }

  //! Notes that a text has drafted n tokens.
  void add_rows(std::int32_t n) { n_rows_ += n; }

  //! Notes that a text has written n tokens.
  void add_tokens(std::int32_t n) { n_written_ += n; }

  //! A text's share of the seconds by which this round is longer than a plain round. `asked`: by level, the nodes of
  //! the text that the draft was asked about, plus the tokens that it had to read; `rows`: the text's drafted tokens.
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

  //! Tokens that a text has gained over plain decoding, if n of its tokens were written and `seconds` is its share by
  //! seconds_of(); below 0 if it has lost some.
  double gain(std::int32_t n, double seconds) const { return n - 1 - plain_rate_ * seconds; }

  //! Ends the round: the rate of the next rounds takes this one into account.
  void end() {
    if (n_texts_ == 0) return;
    tokens_ = kept * tokens_ + n_written_;
    const double prompts = costs_.target_pass(n_roots_, context_) - costs_.target_pass(n_texts_, context_);
    const double plain = plain_tokens_a_second_ * (round_seconds() - prompts);
    plain_tokens_ = kept * plain_tokens_ + (std::max)(plain, least_seconds);
    drafted_ = kept_rows * drafted_ + (1 - kept_rows) * n_rows_ / n_texts_;
  }

  //! Tokens written per second over the last rounds, in the seconds of the cost model; 0 before the first round.
  double tokens_per_second() const { return plain_rate_ * tokens_ / plain_tokens_; }

  //! Seconds of this round by the cost model.
  double round_seconds() const {
    double seconds = costs_.target_pass.of_texts(n_texts_, n_roots_ + n_rows_, context_);
    for (std::size_t level = 0; level < asked_.size(); ++level)
      seconds += seconds_of_level(level);
    return seconds;
  }

 private:
  static constexpr double kept = 0.96;  // share of the weight of earlier rounds that is kept at each round
  static constexpr double kept_rows = 0.8;
  static constexpr double usual_share = 0.75;
  static constexpr double share_weight = 0.01;
  static constexpr double rounds_to_begin_with = 4;
  static constexpr double least_seconds = 1e-12;

  struct offers {
    double gain = 0;
    std::int32_t n_texts = 0;
  };

  // Tokens per second of plain decoding.
  double rate_of(std::int32_t n_texts, std::int32_t context) const {
    return n_texts / (std::max)(costs_.target_pass.of_texts(n_texts, n_texts, context), least_seconds);
  }

  // Seconds of the draft pass over a level. The first level also pays for opening the round.
  double seconds_of_level(std::size_t level) const {
    return costs_.draft_pass.of_texts(askers_[level], asked_[level], context_) +
           (level == 0 && asked_[0] > 0 ? costs_.opening : 0.0);
  }

  // Length of the shortest chains that gain time in k texts, if all of their tokens are accepted.
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
  std::vector<double> rows_;  // [budget + 1] prices of rows in the target's pass
  // weighted sums over rounds: tokens written, and tokens of plain decoding in the same time
  double tokens_ = 0, plain_tokens_ = 0;
  double share_ = usual_share;        // share of first children that were accepted, if their parents were
  double drafted_ = 0;                // mean number of tokens that a text drafted in a recent round
  double rate_ = 0, plain_rate_ = 0;  // tokens per second: the rate that sets the prices, and plain decoding's
  double plain_tokens_a_second_ = 0;  // tokens per second of plain decoding by the texts that are written in this round
  std::int32_t n_texts_ = 0, n_roots_ = 0, context_ = 0, least_chain_ = 0;
  // by level: number of nodes that all texts ask about, plus number of tokens that the draft must read for that
  std::vector<std::int32_t> asked_;
  std::vector<std::int32_t> askers_;         // by level: number of texts that ask
  std::int32_t n_rows_ = 0, n_written_ = 0;  // tokens drafted and tokens written in this round, by all texts
  std::array<offers, max_ahead> offered_{};
  std::size_t levels_ = 0;
};

}  // namespace espalier
