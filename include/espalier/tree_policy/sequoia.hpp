// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/number_list.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/undrawn.hpp"

namespace espalier {

//! Finds, for each size and depth, the tree that commits most tokens a round, if draws of rank 1 are accepted with one
//! probability, draws of rank 2 with another, and so on, at every node and in every text. It is a dynamic programme
//! over sizes, levels and children.
//!
//! If the same number of tokens is computed for several trees, the tree whose nodes have fewer children is taken; then
//! the one whose later children have fewer descendants.
//!
//! Shapes      acceptance [ranks]: by the rank of a draw, beginning with the first draw of a node, how often this draw
//!             is the accepted one if the node is accepted
//! Complexity  O(budget^2 * depth * ranks) to build, with the depth of the best trees; O(budget^2) for a shape
//! Errors      option_error for a budget, depth or number of ranks out of range, or a rate outside 0 to 1
//! Source      Sequoia, section 3 and its choice of size and depth by time. There, sizes and levels count the root
class sequoia_shapes {
 public:
  static constexpr std::int32_t max_budget = 1024, max_levels = 64, max_ranks = 64;

  //! A size of trees: the number of drafted tokens, and the number of levels below the root at most.
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
      // If one level more changes nothing, no further level does.
    } while (n_levels_ <= max_depth && (n_levels_ == 1 || !is_same_as_before()));
  }

  //! Expected number of tokens that the best tree commits in a round, if it has exactly `drafted` nodes below the root
  //! and at most `depth` levels. The target's own token is included. 0 if there is no such tree.
  //!
  //! Pre         0 <= drafted <= budget, 0 <= depth <= max_depth
  double tokens(std::int32_t drafted, std::int32_t depth) const {
    return (std::max)(0.0, best(level_of(depth), static_cast<std::size_t>(drafted) + 1));
  }

  //! The number of drafted tokens, within the budget, of the tree that commits most tokens, if it has at most `depth`
  //! levels below the root; the smallest such number.
  //!
  //! Pre         0 <= depth <= max_depth
  std::int32_t best_size(std::int32_t depth) const {
    std::int32_t drafted = 0;
    for (std::int32_t m = 1; m <= budget_; ++m) {
      if (tokens(m, depth) > tokens(drafted, depth)) drafted = m;
    }
    return drafted;
  }

  //! The size whose rounds take the least time for each committed token. target_seconds(drafted) is the time of the
  //! target's pass in a round with so many drafted tokens; draft_seconds is the time of the draft's pass for one level.
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

  //! The best tree: the number of children of each node, level after level from the root on, siblings by rank.
  //!
  //! Pre         tokens(drafted, depth) > 0
  std::vector<std::int32_t> children(std::int32_t drafted, std::int32_t depth) const {
    // For each subtree its number of nodes, its top included, and the number of levels that it may have below its top.
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
  static constexpr double none = -1;  // stands for no tree; every tree commits at least one token

  std::size_t n_sizes() const { return static_cast<std::size_t>(budget_) + 2; }
  std::size_t n_counts() const { return acceptance_.size() + 1; }

  // The level whose trees have at most this depth. Level 0 is the root alone; from the last level on trees stay the
  // same.
  std::size_t level_of(std::int32_t depth) const { return static_cast<std::size_t>((std::min)(depth, n_levels_ - 1)); }

  // Expected tokens of the best tree of m nodes, root included, whose root has n children; `none` if there is no such
  // tree.
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

  // Divides the m nodes of a tree between the subtree of the root's last child, which has this rank, and the rest of
  // the tree, root included, such that most tokens are expected. Returns the number of nodes of the rest, and the
  // expected number of tokens.
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
  // [levels][nodes] expected tokens of the best tree, over all numbers of children of the root
  std::vector<double> best_;
};

//! Options of sequoia.
struct sequoia_options {
  std::int32_t budget = 64;     //!< drafted tokens of a round
  std::int32_t max_depth = 10;  //!< levels below the root at most
  //! By the rank of a draw, how often it is the accepted one at a node: see acceptance_by_rank. The default is that of
  //! the bundled models at temperature 1, rounded, and never rising with the rank; `nde rates` prints such rates.
  number_list acceptance = {0.713, 0.094, 0.044, 0.026, 0.016, 0.011, 0.010, 0.007,
                            0.006, 0.006, 0.005, 0.004, 0.004, 0.003, 0.003, 0.003};

  static constexpr void describe(auto see) {
    see(option{"budget", &sequoia_options::budget, "drafted tokens a round", 1, sequoia_shapes::max_budget});
    see(option{"max_depth", &sequoia_options::max_depth, "levels below the root", 1, sequoia_shapes::max_levels});
    see(option{"acceptance", &sequoia_options::acceptance, "how often the first, second, ... draw is accepted"});
  }
};

//! Draws a tree of the same shape every round: of all trees within the budget and the depth, the one that commits most
//! tokens if draws are accepted as often as options.acceptance says. Draws are without replacement.
//!
//! Complexity  as sequoia_shapes to build; one draft pass a level, over the nodes that have children; a draw reads its
//!             row once and takes O(c * c), where c is the number of the node's earlier draws. No allocation after
//!             construction
//! Law         whether a draw is made does not depend on any token. Only a row that has given all its tokens gives no
//!             further draw; the part of the shape below that draw is then left out
//! Errors      option_error for options out of range; errors of sequoia_shapes
//! Source      Sequoia, section 3. There, a row that has given all its tokens goes on with tokens of probability 0;
//!             here it ends, as in DySpec
class sequoia {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit sequoia(sequoia_options options = {}) {
    require_options(options);
    const sequoia_shapes shapes(options.acceptance, options.budget, options.max_depth);
    n_children_ = shapes.children(shapes.best_size(options.max_depth), options.max_depth);
    drawn_.resize(n_children_.size(), root_node);
    asked_.resize(n_children_.size());
  }

  std::int32_t max_nodes() const { return static_cast<std::int32_t>(n_children_.size()) - 1; }

  //! The shape: the number of children of each node, level after level from the root on.
  std::span<const std::int32_t> children() const { return n_children_; }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    begin_ = 0;
    end_ = 1;
    return wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    std::size_t child = end_;
    for (std::size_t asked = 0; begin_ < end_; ++begin_) {
      const bool is_asked = asked < n_asked_ && drawn_[begin_] == asked_[asked];
      for (std::int32_t rank = 0; rank < n_children_[begin_]; ++rank)
        drawn_[child++] = is_asked ? draw(tree, asked_[asked], rank, rows, chance) : no_node;
      asked += is_asked ? 1 : 0;
    }
    end_ = child;
    return wanted(tree);
  }

  void observe(tree_view, verdict) const {}

 private:
  // The nodes of a level that have children. Each gives at least one draw, so no more are asked about than the tree has
  // room for.
  template <class TreeT>
  std::span<const node_id> wanted(const TreeT& tree) {
    const std::int32_t left = tree.left();
    n_asked_ = 0;
    for (std::size_t i = begin_; i < end_ && static_cast<std::int32_t>(n_asked_) < left; ++i) {
      if (n_children_[i] > 0 && drawn_[i] != no_node) asked_[n_asked_++] = drawn_[i];
    }
    return std::span<const node_id>(asked_).first(n_asked_);
  }

  template <class TreeT, class RowsT, class ChanceT>
  static node_id draw(TreeT& tree, node_id u, std::int32_t slot, const RowsT& rows, ChanceT& chance) {
    if (tree.full()) return no_node;
    const undrawn_draw drawn = undrawn(tree.view(), u, rows.row(u)).draw(chance, {u, slot, purpose::draft});
    if (drawn.token < 0) return no_node;  // nothing is left of the row
    return tree.append(u, drawn.token, detail::log_prob_of(drawn.probability));
  }

  std::vector<std::int32_t> n_children_;  // [nodes of the shape]
  std::vector<node_id> drawn_;            // [nodes of the shape] the node of the tree, or no_node
  std::vector<node_id> asked_;
  std::size_t n_asked_ = 0;
  std::size_t begin_ = 0, end_ = 0;  // range of the level in the shape
};

}  // namespace espalier
