// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "espalier/concepts/regime.hpp"
#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/undrawn.hpp"

namespace espalier {

struct dyspec_threshold_options {
  std::int32_t budget = 64;     //!< drafted tokens of a round at most
  std::int32_t max_depth = 16;  //!< levels below the root
  double threshold = 0.02;      //!< a draw less likely to be needed than this is made only by `fill`, if at all
  bool fill = false;            //!< after the last level, make less likely draws, too, until the budget is spent
  bool adapt = true;            //!< let the threshold rise and fall with the budget spent, never below `threshold`

  static constexpr void describe(auto see) {
    using self = dyspec_threshold_options;
    see(option{"budget", &self::budget, "drafted tokens a round at most", 1, 1024});
    see(option{"max_depth", &self::max_depth, "levels below the root", 1, 64});
    see(option{"threshold", &self::threshold, "draws less likely to be needed are not made", 0, 1});
    see(option{"fill", &self::fill, "at the end, lower the threshold until the budget is spent"});
    see(option{"adapt", &self::adapt, "raise the threshold after rounds that it let spend the budget too soon"});
  }
};

//! The threshold of one text. With `adapt` it changes from round to round: a threshold that is far too low spends the
//! budget on the first levels alone, and one that is too high leaves it unused. The class is the same on host and
//! device.
class dyspec_threshold_rule {
 public:
  dyspec_threshold_rule() = default;
  ESPALIER_HOST_DEVICE explicit dyspec_threshold_rule(const dyspec_threshold_options& options)
      : options_(options), threshold_(first()) {}

  ESPALIER_HOST_DEVICE const dyspec_threshold_options& options() const { return options_; }

  //! True if a draw that is tested with this probability is to be made.
  ESPALIER_HOST_DEVICE bool needs(wide_number reach) const { return reach > 0 && reach >= threshold_; }

  //! Notes that all levels of a round are drawn: `n_draws` draws in all, and whether there was room for more.
  ESPALIER_HOST_DEVICE void drawn(std::int32_t n_draws, bool has_room) {
    if (n_draws == 0) return;
    spent_ = has_room ? 0 : 1;
    unused_ = has_room && 2 * n_draws < options_.budget ? 1 : 0;
  }

  //! Ends the round: multiplies the threshold by 1.03 if the budget was spent, divides it by 1.03 if more than half of
  //! the budget was left. Larger steps follow the round before too closely, and commit fewer tokens a round.
  ESPALIER_HOST_DEVICE void observe(std::int32_t, std::int32_t) {
    if (!options_.adapt) return;
    const auto least = static_cast<wide_number>(options_.threshold);
    if (spent_ != 0) threshold_ = threshold_ * step < 1 ? threshold_ * step : wide_number{1};
    if (unused_ != 0) threshold_ = threshold_ / step > least ? threshold_ / step : least;
    spent_ = unused_ = 0;
  }

  ESPALIER_HOST_DEVICE void reset() {
    threshold_ = first();
    spent_ = unused_ = 0;
  }

  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    archive(threshold_);
    archive.require(threshold_ >= static_cast<wide_number>(options_.threshold) && threshold_ <= 1);
  }

 private:
  static constexpr wide_number step = static_cast<wide_number>(1.03);

  // The threshold of the first round: the option, or with `adapt` at least 3 / budget, a guess at the best threshold
  // from trees of the bundled models.
  ESPALIER_HOST_DEVICE wide_number first() const {
    const double guess = options_.adapt ? 3.0 / options_.budget : 0;
    return static_cast<wide_number>(guess > options_.threshold ? (guess < 1 ? guess : 1) : options_.threshold);
  }

  dyspec_threshold_options options_;
  wide_number threshold_ = 0;
  std::int32_t spent_ = 0, unused_ = 0;
};

//! DySpec's tree, layer by layer: makes every draw whose probability to be needed, after its ancestors were accepted
//! and its earlier siblings rejected, is at least the threshold. Draws are without replacement.
//!
//! With `adapt`, the threshold of a round follows from the rounds before, so that the round neither spends the budget
//! on the first levels nor leaves much of it unspent. Still, some draws are left in most rounds. With `fill`, the rest
//! of the budget goes to further draws from the rows that were asked for, the draw most likely to be needed first (of
//! equal ones, from the node that was asked about first). No further node is asked about, so these draws stay leaves.
//!
//! Complexity  one draft pass a level, filled or not. A draw reads its row once or twice and takes O(c * c), where c is
//!             the number of the node's earlier draws; a draw that fills takes O(nodes asked about), too. No allocation
//!             after the first rounds
//! Law         if the threshold is the probability with which the last draw of dyspec_greedy is tested, and there are
//!             no ties, the tree is that of dyspec_greedy. A drawn token is kept whatever it is; whether the draft is
//!             asked about it depends on its probability. The filled tree begins with all draws of the tree without
//!             `fill`; where to draw next never depends on the token drawn there
//! Errors      option_error for options out of range
//! Source      DySpec, Algorithm 2; `adapt` and `fill` mend the weakness that its appendix B.1 reports. The limits of
//!             budget and depth are ours: the paths of a confident draft may never fall below the threshold
class dyspec_threshold {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit dyspec_threshold(dyspec_threshold_options options = {}) : rule_(require_options(options)) {
    nodes_.reserve(static_cast<std::size_t>(options.budget) + 1);
    reach_.reserve(static_cast<std::size_t>(options.budget) + 1);
  }

  std::int32_t max_nodes() const { return budget(); }
  //! Number of bytes that the policy takes of an arena at most.
  static constexpr std::size_t bytes(const static_capacity& c) {
    const std::size_t nodes = static_cast<std::size_t>(c.nodes) + 1;
    return arena::bytes_of<node_id>(nodes) + arena::bytes_of<wide_number>(nodes);
  }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    nodes_.clear(), nodes_.push_back(root_node);
    reach_.clear(), reach_.push_back(1);
    begin_ = end_ = 0;
    depth_ = 0;
    return wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    for (std::size_t i = begin_; i < end_; ++i) {
      while (tree.left(budget()) > 0 && rule_.needs(reach_[i]))
        draw(tree, i, rows, chance);
    }
    begin_ = end_;
    ++depth_;
    const auto next = wanted(tree);
    if (next.empty()) {
      rule_.drawn(tree.view().n_draws, tree.left(budget()) > 0);
      if (rule_.options().fill) fill(tree, rows, chance);
    }
    return next;
  }

  void observe(tree_view tree, verdict v) { rule_.observe(tree.depth[v.accepted], tree.n_draws); }

  void reset() { rule_.reset(); }
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    rule_.serialize(archive);
  }

 private:
  std::int32_t budget() const { return rule_.options().budget; }

  // The nodes of the next level. Each gives at least one draw, so no more are asked about than the budget has left.
  template <class TreeT>
  std::span<const node_id> wanted(const TreeT& tree) {
    if (depth_ < rule_.options().max_depth)
      end_ = (std::min)(nodes_.size(), begin_ + static_cast<std::size_t>(tree.left(budget())));
    return std::span<const node_id>(nodes_).subspan(begin_, end_ - begin_);
  }

  // Makes further draws from the nodes that were asked about, until the budget is spent.
  template <class TreeT, class RowsT, class ChanceT>
  void fill(TreeT& tree, const RowsT& rows, ChanceT& chance) {
    const auto asked = reach_.begin() + static_cast<std::ptrdiff_t>(end_);
    while (tree.left(budget()) > 0) {
      const auto most = std::max_element(reach_.begin(), asked);
      if (!(*most > 0)) return;
      draw(tree, static_cast<std::size_t>(most - reach_.begin()), rows, chance);
    }
  }

  // Makes one more draw from the i-th of the expanded nodes; its reach falls to 0 once nothing is left of its row.
  template <class TreeT, class RowsT, class ChanceT>
  void draw(TreeT& tree, std::size_t i, const RowsT& rows, ChanceT& chance) {
    const node_id u = nodes_[i];
    const wide_number reach = std::exchange(reach_[i], wide_number{0});
    std::int32_t slot = 0;
    for (auto it = tree.view().draws(u).begin(); it != tree.view().draws(u).end(); ++it)
      ++slot;
    const undrawn undrawn_row(tree.view(), u, rows.row(u));
    const undrawn_draw drawn = undrawn_row.draw(chance, {u, slot, purpose::draft});
    if (drawn.token < 0) return;
    const wide_number share = undrawn_row.share(drawn);
    const node_id child = tree.append(u, drawn.token, detail::log_prob_of(drawn.probability));
    reach_[i] = reach * (1 - share);
    if (rule_.needs(reach * share)) {
      nodes_.push_back(child);
      reach_.push_back(reach * share);
    }
  }

  dyspec_threshold_rule rule_;
  detail::list<node_id> nodes_;  // all expanded nodes, level after level; this level has indices begin_ to end_ - 1
  std::size_t begin_ = 0, end_ = 0;
  std::int32_t depth_ = 0;
  detail::list<wide_number> reach_;  // [nodes] probability that the next draw from a node is tested
};

}  // namespace espalier
