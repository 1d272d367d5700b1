// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/sampling/top_k.hpp"
#include "espalier/tree_policy/acceptance_calibration.hpp"
#include "espalier/tree_policy/asked_nodes.hpp"
#include "espalier/tree_policy/cost_aware_options.hpp"
#include "espalier/tree_policy/draft_pauses.hpp"
#include "espalier/tree_policy/log_prob.hpp"
#include "espalier/tree_policy/provisional.hpp"
#include "espalier/tree_policy/round_start.hpp"
#include "espalier/tree_policy/throughput_price.hpp"

namespace espalier {

//! Drafts the prefixes that are most likely to be accepted, as long as each pass, and the target's rows, are expected to gain more
//! tokens than could be written otherwise in the time that they take. What is expected follows from the draft's probabilities
//! and from what was accepted lately; time is that of the cost model.
//!
//! A level is asked about if the best tree then expected, less the price of rows and passes, is better than the best one now: each
//! asked node is taken to begin a path each token of which is as likely to be accepted as best children lately were. A path of several
//! tokens may pay where its first token alone does not, as where the target's pass takes longer in steps. After the last level
//! the tree is the n best prefixes, for the n that is worth most. Whether the draft is asked at all follows from what it has
//! gained in this text (draft_pauses); it never is where not even a chain of which all is accepted would gain time.
//!
//! Complexity  one draft pass a level; O(levels ahead * budget) for each node that may be asked about; no allocation after construction
//! Law         the tree depends on the options, the costs, the draft's rows and the verdicts of the text's earlier rounds alone. Parents
//!             are at least as likely as their children: what is chosen is a tree
//! Errors      option_error as cost_aware_options::checked()
//! Source      ours; reach as OPT-Tree's, the acceptance calibrated
class cost_aware {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit cost_aware(cost_aware_options options = {}) : cost_aware(options, options.costs()) {}

  cost_aware(cost_aware_options options, cost_model costs)
      : options_(options.checked()),
        price_(std::move(costs), options.budget),
        asked_(options.budget, options.budget, options.budget),
        reach_(static_cast<std::size_t>(options.budget)) {
    best_.reserve(static_cast<std::size_t>(options.budget) + 1);
    ahead_.reserve(static_cast<std::size_t>(options.budget) + 1);
    frontier_.reserve(static_cast<std::size_t>(options.budget) + 1);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  //! What was learnt of a text is forgotten: the next one may be of another kind.
  void reset() {
    price_.reset();
    pauses_.reset();
    asks_ = false;
    share_ = usual_share;
    first_child_.reset();
    other_child_.reset();
  }

  void open(const round_start& start) { price_.open(start.length - 1); }

  template <class TreeT, RenumberingDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT&) {
    pauses_.begin_round();
    limit_ = (std::min)(tree.limit(), options_.budget);
    price_.begin_round(limit_);
    asks_ = price_.can_gain((std::min)(limit_, options_.max_depth)) && pauses_->asks();
    if (asks_) draft(tree, drafter);
    price_.end_round(tree.size() - 1);
  }

  void observe(tree_view tree, verdict v) {
    pauses_.keep();
    // Where the session has cut the verdict, its token may be one that was accepted, too.
    node_id taken = tree.find_child(v.accepted, v.token);
    for (node_id u = v.accepted; u != no_node; taken = u, u = tree.parent[u]) {
      acceptance_calibration* rank = &first_child_;
      for (const node_id child : tree.draws(u)) {
        if (rank == &first_child_) share_ += share_weight * ((child == taken ? 1 : 0) - share_);
        rank->observe(std::exp(static_cast<double>(tree.log_prob[child])), child == taken);
        rank = &other_child_;
      }
    }
    price_.observe(tree.depth[v.accepted] + 1);
    if (asks_) pauses_->observe(v.accepted != root_node, price_.gain());
  }

  //! Tokens a second of the last rounds, in the seconds of the cost model.
  double tokens_per_second() const { return price_.tokens_per_second(); }

 private:
  static constexpr std::int32_t max_breadth = 8;  // children of a node
  static constexpr std::int32_t max_ahead = 8;    // levels that are expected beyond those that were asked about
  static constexpr double usual_share = 0.8;      // of best children accepted, at the beginning of a text
  static constexpr double share_weight = 0.05;    // of a best child among those that make up the share

  struct prefix : considered_node {
    double reach = 0;  // the probability that it is accepted
    std::int32_t depth = 0;
  };

  static bool is_better(const prefix& a, const prefix& b) {
    return a.reach > b.reach || (a.reach == b.reach && a.depth < b.depth);
  }

  template <class TreeT, class DrafterT>
  void draft(TreeT& tree, DrafterT& drafter) {
    best_.clear();
    n_worth_ = 0;
    asked_.start();
    reach_[0] = 1;
    for (std::int32_t depth = 1;; ++depth) {
      const auto level = asked_.level();
      price_.add_pass(static_cast<std::int32_t>(level.size()));
      const auto rows = drafter.propose(tree, level);
      for (std::size_t i = 0; i < level.size(); ++i)
        consider_children(level[i], reach_[i], rows.row(static_cast<std::int32_t>(i)), depth);
      const double worth = worth_of_best();
      if (depth == options_.max_depth || !next_level(tree, depth, worth)) break;
    }
    // A trial needs a token to learn from.
    if (pauses_->paused() && n_worth_ == 0 && !best_.empty()) n_worth_ = 1;
    asked_.rebuild(tree, drafter, std::span(best_).first(n_worth_));
  }

  // Expected tokens of the best prefixes less the price of their rows, for the number of them of which that is most.
  double worth_of_best() {
    double expected = 0, most = 0;
    n_worth_ = 0;
    for (std::size_t n = 1; n <= best_.size(); ++n) {
      expected += best_[n - 1].reach;
      const double worth = expected - price_.of_rows(static_cast<std::int32_t>(n));
      if (worth > most) most = worth, n_worth_ = n;
    }
    return most;
  }

  template <class TreeT>
  bool next_level(TreeT& tree, std::int32_t depth, double worth) {
    frontier_.clear();
    for (std::size_t i = 0; i < best_.size(); ++i) {
      if (best_[i].depth == depth) frontier_.push_back({best_[i].reach, i});
    }
    const std::size_t n = worth_asking(depth, worth);
    asked_.next_level();
    for (std::size_t i = 0; i < n; ++i) {
      prefix& p = best_[frontier_[i].place];
      asked_.add(tree, p);
      if (p.node == no_node) break;
      reach_[i] = p.reach;
    }
    return !asked_.level().empty();
  }

  // How many of the frontier, the best first, to ask about; none where nothing better than `worth` is expected of it.
  std::size_t worth_asking(std::int32_t depth, double worth) {
    const std::int32_t levels = (std::min)(options_.max_depth - depth, max_ahead);
    std::size_t best_n = 0;
    for (std::size_t n = 1; n <= frontier_.size() && n <= best_n + 2; ++n) {
      ahead_.clear();
      for (const prefix& p : best_)
        ahead_.push_back(p.reach);
      double share = 1, passes = 0;
      for (std::int32_t level = 1; level <= levels; ++level) {
        share *= share_;
        passes += price_.of_pass(static_cast<std::int32_t>(n));
        for (std::size_t i = 0; i < n; ++i)
          expect(frontier_[i].reach * share);
        const double then = worth_of_ahead() - passes;
        if (then > worth) worth = then, best_n = n;
      }
    }
    return best_n;
  }

  void expect(double reach) {
    const auto at = std::upper_bound(ahead_.begin(), ahead_.end(), reach, std::greater<>());
    if (at - ahead_.begin() >= limit_) return;
    if (ahead_.size() == static_cast<std::size_t>(limit_)) ahead_.pop_back();
    ahead_.insert(at, reach);
  }

  double worth_of_ahead() const {
    double expected = 0, most = 0;
    for (std::size_t n = 1; n <= ahead_.size(); ++n) {
      expected += ahead_[n - 1];
      most = (std::max)(most, expected - price_.of_rows(static_cast<std::int32_t>(n)));
    }
    return most;
  }

  template <class NumberT>
  void consider_children(node_id u, double reach, std::span<const NumberT> row, std::int32_t depth) {
    candidate<NumberT> top[max_breadth];
    const std::int32_t n = top_k(row, std::span(top));
    double left = 1;  // one of them at most is accepted
    double most = 1;  // and the more probable one at least as likely
    for (std::int32_t i = 0; i < n; ++i) {
      const auto probability = static_cast<double>(top[i].probability);
      const acceptance_calibration& rank = i == 0 ? first_child_ : other_child_;
      const double accepted = (std::min)({left, most, rank.probability(probability)});
      left -= accepted;
      most = accepted;
      prefix p;
      p.token = top[i].token;
      p.log_prob = detail::log_prob_of(probability);
      p.parent = u;
      p.reach = reach * accepted;
      p.depth = depth;
      const auto at = std::upper_bound(best_.begin(), best_.end(), p, is_better);
      if (at - best_.begin() >= limit_) return;
      if (best_.size() == static_cast<std::size_t>(limit_)) best_.pop_back();
      best_.insert(at, p);
    }
  }

  struct frontier_node {
    double reach;
    std::size_t place;  // among the best prefixes
  };

  cost_aware_options options_;
  throughput_price price_;
  provisional<draft_pauses> pauses_;
  // Priors: others are accepted as often as the draft says, the most probable token more often: it is the likeliest to be the
  // target's most probable one, too.
  acceptance_calibration first_child_{{0.9, 1.0}};
  acceptance_calibration other_child_{{0.0, 1.0}};
  asked_nodes asked_;
  double share_ = usual_share;           // of best children that were accepted lately, where their parents were
  std::vector<double> reach_;            // [budget] of the nodes of the level
  std::vector<prefix> best_;             // the best so far, best first
  std::vector<double> ahead_;            // reaches of what is expected to be the best, best first
  std::vector<frontier_node> frontier_;  // what may be asked about next, best first
  std::size_t n_worth_ = 0;              // so many of the best are worth their rows
  std::int32_t limit_ = 0;
  bool asks_ = false;  // in this round
};

}  // namespace espalier
