// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "espalier/core/error.hpp"

namespace espalier {

//! The tree of each size and depth that commits most tokens a round, where the first draw of any node is accepted with
//! one probability, the second with another, and so on, whatever the text: a dynamic programme over sizes, levels and
//! children.
//!
//! Of trees that commit equally many (as computed), the one whose nodes have fewer children; then the one whose later
//! children have fewer descendants.
//!
//! Shapes      acceptance [ranks]: of the draws of a node, the first one's first; how often each is the one accepted
//!             where the node is reached
//! Complexity  O(budget^2 * depth * ranks) to build, depth being that of the best trees; O(budget^2) for a shape
//! Errors      option_error for a budget, depth or number of ranks out of range, or a probability that is none
//! Source      Sequoia, section 3 and its choice of size and depth by time. There, sizes and levels count the root
class sequoia_shapes {
 public:
  static constexpr std::int32_t max_budget = 1024, max_levels = 64, max_ranks = 64;

  struct size {
    std::int32_t drafted = 0;
    std::int32_t depth = 0;
  };

  sequoia_shapes(std::span<const double> acceptance, std::int32_t budget, std::int32_t max_depth)
      : acceptance_(acceptance.begin(), acceptance.end()), budget_(budget), max_depth_(max_depth) {
    require_option("budget", budget, 0, max_budget);
    require_option("max_depth", max_depth, 0, max_levels);
    require_option("number of acceptance rates", acceptance.size(), 1, max_ranks);
    for (const double rate : acceptance)
      require_option("acceptance rate", rate, 0.0, 1.0);
    do {
      add_level();
      // Where one level more changes nothing, no further one does.
    } while (n_levels_ <= max_depth && (n_levels_ == 1 || !is_same_as_before()));
  }

  //! The tokens that the best tree of exactly `drafted` nodes below the root and at most `depth` levels commits a
  //! round, the target's own token included; 0 where there is no such tree.
  //!
  //! Pre         0 <= drafted <= budget, 0 <= depth <= max_depth
  double tokens(std::int32_t drafted, std::int32_t depth) const {
    return (std::max)(0.0, best(level_of(depth), static_cast<std::size_t>(drafted) + 1));
  }

  //! The smallest number of drafted tokens within the budget that commits most.
  std::int32_t best_size(std::int32_t depth) const {
    std::int32_t drafted = 0;
    for (std::int32_t m = 1; m <= budget_; ++m) {
      if (tokens(m, depth) > tokens(drafted, depth)) drafted = m;
    }
    return drafted;
  }

  //! The size and depth that take the least time a token: target_seconds(drafted) for a round's target pass,
  //! draft_seconds for each level.
  template <class TargetSecondsT>
  size cheapest(const TargetSecondsT& target_seconds, double draft_seconds) const {
    size found;
    double least = std::numeric_limits<double>::infinity();
    for (std::int32_t m = 0; m <= budget_; ++m) {
      const double target = target_seconds(m);
      for (std::int32_t d = 0; d <= max_depth_; ++d) {
        if (tokens(m, d) == 0) continue;
        const double seconds = (target + d * draft_seconds) / tokens(m, d);
        if (seconds < least) least = seconds, found = {m, d};
      }
    }
    return found;
  }

  //! The best tree: how many children each node has, level after level from the root on, siblings by rank.
  //!
  //! Pre         tokens(drafted, depth) > 0
  std::vector<std::int32_t> children(std::int32_t drafted, std::int32_t depth) const {
    // Nodes that a subtree has, itself included, and the levels that it may have.
    std::vector<std::pair<std::size_t, std::size_t>> subtrees{{static_cast<std::size_t>(drafted) + 1, level_of(depth)}};
    std::vector<std::int32_t> counts;
    for (std::size_t i = 0; i < subtrees.size(); ++i) {
      auto [m, level] = subtrees[i];
      const std::size_t n = best_children(level, m);
      counts.push_back(static_cast<std::int32_t>(n));
      subtrees.resize(subtrees.size() + n);
      for (std::size_t rank = n; rank > 0; --rank) {
        const std::size_t rest = split(level, rank, m).first;
        subtrees[subtrees.size() - 1 - (n - rank)] = {m - rest, level > 0 ? level - 1 : 0};
        m = rest;
      }
    }
    return counts;
  }

 private:
  static constexpr double none = -1;  // no such tree: every tree commits at least one token

  std::size_t n_sizes() const { return static_cast<std::size_t>(budget_) + 2; }
  std::size_t n_counts() const { return acceptance_.size() + 1; }

  // The level whose trees have that depth, beyond which they stay the same. Level 0: the root alone.
  std::size_t level_of(std::int32_t depth) const { return static_cast<std::size_t>((std::min)(depth, n_levels_ - 1)); }

  // What the best tree of m nodes with n children of the root is worth.
  const double& value(std::size_t level, std::size_t n, std::size_t m) const {
    return values_[(level * n_counts() + n) * n_sizes() + m];
  }

  std::size_t best_children(std::size_t level, std::size_t m) const {
    std::size_t found = 0;
    for (std::size_t n = 1; n < n_counts(); ++n) {
      if (value(level, n, m) > value(level, found, m)) found = n;
    }
    return found;
  }

  double best(std::size_t level, std::size_t m) const { return best_[level * n_sizes() + m]; }

  // The last of `rank` children takes a part of the m nodes: how many are left for the others and the root, and the
  // value.
  std::pair<std::size_t, double> split(std::size_t level, std::size_t rank, std::size_t m) const {
    std::pair<std::size_t, double> found{0, none};
    if (level == 0) return found;
    const double rate = acceptance_[rank - 1];
    const double* const others = &value(level, rank - 1, 0);
    const double* const subtree = &best_[(level - 1) * n_sizes()];
    for (std::size_t rest = m; --rest > 0;) {
      if (others[rest] == none || subtree[m - rest] == none) continue;
      const double total = others[rest] + rate * subtree[m - rest];
      if (total > found.second) found = {rest, total};
    }
    return found;
  }

  void add_level() {
    const auto level = static_cast<std::size_t>(n_levels_++);
    values_.resize(values_.size() + n_counts() * n_sizes(), none);
    const auto at = [&](std::size_t n, std::size_t m) -> double& {
      return values_[(level * n_counts() + n) * n_sizes() + m];
    };
    at(0, 1) = 1;
    for (std::size_t n = 1; n < n_counts(); ++n) {
      for (std::size_t m = n + 1; m < n_sizes(); ++m)
        at(n, m) = split(level, n, m).second;
    }
    for (std::size_t m = 0; m < n_sizes(); ++m)
      best_.push_back(value(level, best_children(level, m), m));
  }

  bool is_same_as_before() const {
    const auto level = values_.end() - static_cast<std::ptrdiff_t>(n_counts() * n_sizes());
    return std::equal(level, values_.end(), level - static_cast<std::ptrdiff_t>(n_counts() * n_sizes()));
  }

  std::vector<double> acceptance_;
  std::int32_t budget_;
  std::int32_t max_depth_;
  std::int32_t n_levels_ = 0;
  std::vector<double> values_;  // [levels][children of the root, 0 to ranks][nodes, root included]
  std::vector<double> best_;    // [levels][nodes], over the children of the root
};

}  // namespace espalier
