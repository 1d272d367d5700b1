// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "espalier/core/tree_limit.hpp"
#include "espalier/decoder/round.hpp"

namespace espalier {

//! Sums over the rounds of one or more texts. It is an observer: call it with the record of each step. A step that has
//! only read a part of a prompt is no round: only its seconds count, as part of the first round of its text.
//! (generate() adds these seconds to the first round itself.)
struct statistics {
  std::int64_t rounds = 0;
  std::int64_t tokens = 0;          //!< committed
  std::int64_t drafted = 0;         //!< draws in the trees sent to the target
  std::int64_t accepted = 0;        //!< draft tokens committed
  std::int64_t deepest = 0;         //!< sum over rounds of the depth of the tree
  std::int64_t forwarded_rows = 0;  //!< rows of the target's passes in rounds
  std::int64_t drafted_ahead = 0;   //!< rounds whose tree was drafted during the target's pass of the round before
  std::int64_t texts = 0;           //!< texts that began or were resumed, counted at their first round after that; a
                                    //!< text that load() goes on with is not counted again
  std::int64_t first_tokens = 0;    //!< tokens that first rounds committed
  double first_token_seconds = 0;   //!< sum over first rounds of their time, with the reading of the prompt
  std::array<std::int64_t, n_tree_limits> limited_by{};  //!< [tree_limit] rounds whose tree ended for this reason
  station_seconds seconds;
  double reading_seconds = 0;  //!< seconds of reading the prompt of a text whose first round has not come yet

  void operator()(const round_record& r) {
    seconds += r.seconds;
    if (r.index == 0) reading_seconds += r.seconds.total();
    if (r.committed.empty()) {
      if (r.state != status::running) reading_seconds = 0;
      return;
    }
    ++rounds;
    ++limited_by[static_cast<std::size_t>(r.limited_by)];
    tokens += static_cast<std::int64_t>(r.committed.size());
    drafted += r.tree.n_draws;
    accepted += r.accepted();
    forwarded_rows += r.forwarded_rows;
    drafted_ahead += r.drafted_ahead ? 1 : 0;
    std::int32_t depth = 0;
    for (node_id u = 0; u < r.tree.n_nodes; ++u)
      depth = r.tree.depth[u] > depth ? r.tree.depth[u] : depth;
    deepest += depth;
    if (r.index == 0) {
      ++texts;
      first_tokens += static_cast<std::int64_t>(r.committed.size());
      first_token_seconds += std::exchange(reading_seconds, 0.0);
    }
  }

  //! Adds the sums of other texts.
  statistics& operator+=(const statistics& other) {
    rounds += other.rounds, tokens += other.tokens, drafted += other.drafted, accepted += other.accepted;
    deepest += other.deepest, forwarded_rows += other.forwarded_rows, drafted_ahead += other.drafted_ahead;
    texts += other.texts;
    first_tokens += other.first_tokens, first_token_seconds += other.first_token_seconds;
    seconds += other.seconds;
    for (std::size_t i = 0; i < limited_by.size(); ++i)
      limited_by[i] += other.limited_by[i];
    return *this;
  }

  //! Committed tokens a second; the time includes the reading of prompts.
  double throughput() const { return ratio(static_cast<double>(tokens), seconds.total()); }
  //! Throughput over that of a baseline, usually plain decoding of the same prompts.
  double speedup(const statistics& baseline) const { return ratio(throughput(), baseline.throughput()); }
  //! Seconds from the prompt to the first committed tokens, mean over texts.
  double time_to_first_token() const { return ratio(first_token_seconds, static_cast<double>(texts)); }
  //! Seconds for each token that a later round than the first of its text committed.
  double time_per_token() const {
    return ratio(seconds.total() - first_token_seconds, static_cast<double>(tokens - first_tokens));
  }
  //! Accepted draft tokens, as a share of `drafted`.
  double acceptance_rate() const { return ratio(static_cast<double>(accepted), static_cast<double>(drafted)); }
  //! Accepted draft tokens a round.
  double acceptance_length() const { return per_round(accepted); }
  //! Committed tokens a round: the block efficiency.
  double tokens_per_round() const { return per_round(tokens); }
  double drafted_per_round() const { return per_round(drafted); }
  //! Depth of the tree, mean over rounds.
  double depth() const { return per_round(deepest); }
  //! Share of the time that was spent outside forward passes. Rounds on a device count as forward passes, since the
  //! host does not see their parts.
  double overhead() const { return ratio(seconds.overhead(), seconds.total()); }

 private:
  static double ratio(double a, double b) { return b > 0 ? a / b : 0.0; }
  double per_round(std::int64_t sum) const { return ratio(static_cast<double>(sum), static_cast<double>(rounds)); }
};

}  // namespace espalier
