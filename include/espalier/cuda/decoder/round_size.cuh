// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/shared_rows.cu
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/cost/cost_model.hpp"
#include "espalier/cuda/decoder/round_kernels.cuh"

namespace espalier::cuda::detail {

// The choice of the number of rows that trees have in a round's pass of the target: one for each lane, twice as many,
// four times, ..., or all that trees may have. With costs it is the number with which the most tokens a second are
// expected, by the gains that the latest rounds have estimated; without costs it is all. The host chooses before a
// round, so the choice depends on no draw of that round.
class round_size {
 public:
  round_size(std::optional<cost_model> costs, std::int32_t max_nodes, std::int32_t max_rows)
      : costs_(std::move(costs)), max_nodes_(max_nodes), max_rows_(max_rows) {
    while ((1 << n_sizes_) <= max_nodes)
      ++n_sizes_;
    ++n_sizes_;
  }

  bool has_costs() const { return costs_.has_value(); }
  // Number of sizes that rounds estimate gains for: size i has 2^i rows for each lane.
  std::int32_t n_sizes() const { return n_sizes_; }
  // Largest number of rows that trees of `lanes` lanes may have.
  std::int32_t most(std::int32_t lanes) const {
    const std::int64_t rows = std::int64_t{lanes} * (max_nodes_ + 1);
    return static_cast<std::int32_t>((std::min)(rows, std::int64_t{max_rows_}));
  }

  // Returns the number of rows for the trees of `lanes` lanes, `n_texts` of them with a text of `context` tokens on
  // average, in a pass that also has `other_rows` rows.
  std::int32_t choose(std::int32_t lanes, std::int32_t n_texts, std::int32_t context, std::int32_t other_rows) const {
    const std::int32_t all = (std::min)(most(lanes), max_rows_ - other_rows);
    if (!costs_ || all <= lanes || !has_seen_) return all;
    double draft = costs_->opening;
    for (const std::int32_t asked : asked_)
      draft += costs_->draft_pass.of_texts(n_texts, asked * lanes, context);
    const auto rate = [&](std::int32_t i) {
      const std::int32_t rows = (std::min)(lanes << i, all);
      const double seconds = costs_->target_pass.of_texts(n_texts, rows + other_rows, context) + (i > 0 ? draft : 0.0);
      return (1 + (i > 0 ? gains_[static_cast<std::size_t>(i)] : 0.0)) / (std::max)(seconds, 1e-12);
    };
    std::int32_t best = 1;
    for (std::int32_t i = 2; i < n_sizes_ && lanes << (i - 1) < all; ++i)
      best = rate(i) > rate(best) ? i : best;
    // Rounds without drafts do not show what drafts would gain, so after trial_after of them a draft is tried.
    if (rate(0) >= rate(best) && n_plain_ < trial_after) return lanes;
    return (std::min)(lanes << best, all);
  }

  // Takes note that a round begins, with drafts or without.
  void begin(bool drafts) { n_plain_ = drafts ? 0 : n_plain_ + 1; }
  // Takes note that rounds with drafts ask about these numbers of nodes of each text, pass by pass.
  void draft_as(std::span<const std::int32_t> asked) { asked_.assign(asked.begin(), asked.end()); }

  // Learns from the gains that a round with drafts for n texts has estimated. Shapes: outcomes [n_sizes]
  void observe(std::int32_t n, std::span<const round_outcome> outcomes) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(n_sizes_); ++i) {
      const double gain = static_cast<double>(outcomes[i].expected) / n;
      gains_[i] += (has_seen_ ? weight : 1.0) * (gain - gains_[i]);
    }
    has_seen_ = true;
  }

 private:
  static constexpr double weight = 0.25;           // weight of the latest round in gains_
  static constexpr std::int32_t trial_after = 64;  // rounds without drafts before one is tried

  std::optional<cost_model> costs_;
  std::int32_t max_nodes_, max_rows_;
  std::int32_t n_sizes_ = 0;
  std::vector<std::int32_t> asked_;
  std::array<double, 32> gains_{};  // by size: tokens that a text is expected to gain
  bool has_seen_ = false;
  std::int32_t n_plain_ = 0;
};

}  // namespace espalier::cuda::detail
