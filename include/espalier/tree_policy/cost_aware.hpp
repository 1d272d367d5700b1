// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_limit.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/top_k.hpp"
#include "espalier/tree_policy/cost_aware/acceptance_calibration.hpp"
#include "espalier/tree_policy/cost_aware/cost_aware_options.hpp"
#include "espalier/tree_policy/cost_aware/draft_pauses.hpp"
#include "espalier/tree_policy/cost_aware/round_budget.hpp"
#include "espalier/tree_policy/cost_aware/text_budget.hpp"
#include "espalier/tree_policy/growth/asked_nodes.hpp"
#include "espalier/tree_policy/growth/provisional.hpp"

namespace espalier {

//! Predicts how far the runs of a SequenceDrafter are accepted in a text, and so how much of a run is worth its rows.
//!
//! The probability that a token is accepted, given that the run's tokens before it are, is taken to depend on the
//! length of the match before it: the length of the run's own match (token_run::match), plus the number of the run's
//! tokens before this one. For each of the lengths 0, 1, 2, 3, 4 to 7, 8 to 15, 16 to 31, and 32 or more, the object
//! keeps the share of recent tokens that were the written ones. The share begins with a prior.
//!
//! A run costs nothing to ask for, and its tokens can be compared with the written tokens whether they were drafted or
//! not. So a round that drafts nothing teaches, too: no trial is needed to find out that a text begins to repeat
//! itself.
//!
//! Complexity  O(length of the run) a round; no allocation after construction
//! Law         nothing but observe(), reset() and a serialize() that loads changes the predictions
class run_acceptance {
 public:
  //! Makes room for runs of up to `longest` tokens.
  explicit run_acceptance(std::int32_t longest) : run_(static_cast<std::size_t>(longest)) {}

  //! Forgets all observations.
  void reset() {
    right_ = seen_ = {};
    begin_round();
  }

  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    for (std::size_t i = 0; i < n_lengths; ++i) {
      archive(right_[i], seen_[i]);
      archive.require(right_[i] >= 0 && seen_[i] >= right_[i]);
    }
  }

  //! The probability that the token after a match of this length is accepted; above 0 and below 1.
  double probability(std::int32_t match) const {
    const std::size_t i = length_of(match);
    return (right_[i] + prior_weight * priors[i]) / (seen_[i] + prior_weight);
  }

  //! Begins a round in which no run is known yet.
  void begin_round() {
    n_run_ = 0;
    is_known_ = false;
  }
  //! True if a drafter was asked for a run in this round.
  bool is_known() const { return is_known_; }

  //! Returns how many tokens of this run to draft, from 0 to `limit`: the number at which the expected number of
  //! accepted tokens, less the price of their rows, is greatest. of_rows(n) is the price of n rows, in tokens. The run
  //! is copied for observe().
  template <class PriceT>
  std::int32_t worth(const token_run& run, std::int32_t limit, const PriceT& of_rows) {
    is_known_ = true;
    match_ = run.match;
    const std::span<const token_id> tokens = run.tokens.first((std::min)(run.tokens.size(), run_.size()));
    std::copy(tokens.begin(), tokens.end(), run_.begin());
    n_run_ = static_cast<std::int32_t>(tokens.size());
    double reach = 1, expected = 0, best = 0;
    std::int32_t n_best = 0;
    for (std::int32_t n = 1; n <= (std::min)(n_run_, limit); ++n) {
      reach *= probability(match_ + n - 1);
      expected += reach;
      const double gain = expected - of_rows(n);
      if (gain > best) best = gain, n_best = n;
    }
    return n_best;
  }

  //! Ends the round: compares the run with the written tokens.
  void observe(tree_view tree, verdict v) {
    std::int32_t wrong = n_run_;  // index of the first token of the run that was not written
    const auto compare = [&](std::int32_t i, token_id written) {
      if (i < n_run_ && run_[static_cast<std::size_t>(i)] != written) wrong = (std::min)(wrong, i);
    };
    compare(tree.depth[v.accepted], v.token);
    for (node_id u = v.accepted; u != root_node; u = tree.parent[u])
      compare(tree.depth[u] - 1, tree.token[u]);
    const std::int32_t n_seen = (std::min)({wrong + 1, n_run_, tree.depth[v.accepted] + 1});
    for (std::int32_t i = 0; i < n_seen; ++i)
      add(match_ + i, i != wrong);
  }

 private:
  static constexpr std::size_t n_lengths = 8;
  static constexpr double kept = 0.98;  // share of the weight of earlier tokens that is kept at each token
  static constexpr double prior_weight = 3;
  static constexpr std::array<double, n_lengths> priors{0.2, 0.2, 0.3, 0.4, 0.5, 0.75, 0.9, 0.97};

  static std::size_t length_of(std::int32_t match) {
    if (match < 4) return static_cast<std::size_t>(match);
    return (std::min)(static_cast<std::size_t>(std::bit_width(static_cast<std::uint32_t>(match))) + 1, n_lengths - 1);
  }

  void add(std::int32_t match, bool is_right) {
    const std::size_t i = length_of(match);
    right_[i] = kept * right_[i] + (is_right ? 1 : 0);
    seen_[i] = kept * seen_[i] + 1;
  }

  std::array<double, n_lengths> right_{}, seen_{};
  std::vector<token_id> run_;  // [longest] the run of this round
  std::int32_t n_run_ = 0;
  std::int32_t match_ = 0;
  bool is_known_ = false;
};

//! Drafts the prefixes (paths from the root) that are most likely to be accepted, as far as that pays: each draft pass,
//! and each row of the target's pass, must be expected to gain more tokens than could otherwise be written in the time
//! that it takes. The probability that a token is accepted is estimated from the draft's probabilities and from
//! recently accepted tokens. Times are those of the cost model. Many texts may share one round_budget; each text then
//! pays for what it adds to the passes that they share.
//!
//! - Which nodes to keep: after the last level the tree is the n best prefixes. n is the number at which the expected
//!   number of accepted tokens, less the price of the rows, is greatest.
//! - Whether to ask about a further level: yes if the tree that could then be built is expected to be worth more than
//!   the best one now. For that estimate, each node that would be asked about is taken to begin a path on which each
//!   token is accepted as often as a node's most probable child recently was. The whole path is considered, since it
//!   may pay even if its first token alone does not: the time of the target's pass rises in steps.
//! - Over a SequenceDrafter: how much of its run to keep. The policy keeps the first n tokens; n is the number at which
//!   the expected number of accepted tokens, less the price of the rows, is greatest. run_acceptance gives the
//!   probabilities. A run costs nothing to ask for, so it is asked for in every round, and no pause is needed: the
//!   written text is compared with the run in any case.
//! - Whether to ask a model at all: draft_pauses decides, by the tokens that the draft has gained in this text. The
//!   model is never asked if not even a chain of which all tokens are accepted would gain time. Over a SequenceDrafter,
//!   only the price of rows should count: give the policy costs without a draft (cost_model::without_draft, or
//!   draft_cost 0).
//!
//! Complexity  one draft pass a level; each row is read once; O(n * levels ahead * budget) for each number n of nodes
//!             that it considers asking about; over a run O(budget); no allocation after construction
//! Law         the tree depends on nothing but the options, the costs, the draft's rows (or its run, and the length of
//!             the match), the text's length, the room that is left, the verdicts of the text's earlier rounds, and the
//!             budget that it shares, if it does. A parent is at least as likely to be accepted as its children, so the
//!             chosen prefixes are a tree
//! Errors      option_error for options out of range
//! Source      ours. Prefixes are ranked as OPT-Tree does, by calibrated probabilities of acceptance
class cost_aware {
 public:
  static constexpr regime sampling = regime::deterministic;

  explicit cost_aware(cost_aware_options options = {}) : cost_aware(options, options.costs()) {}

  cost_aware(cost_aware_options options, cost_model costs)
      : options_(require_options(options)),
        budget_(std::move(costs), options.budget, options.max_depth),
        runs_(options.budget),
        asked_(options.budget, options.budget, options.budget),
        reach_(static_cast<std::size_t>(options.budget)) {
    best_.reserve(static_cast<std::size_t>(options.budget) + 1);
    ahead_.reserve(static_cast<std::size_t>(options.budget) + 1);
    frontier_.reserve(static_cast<std::size_t>(options.budget) + 1);
  }

  std::int32_t max_nodes() const { return options_.budget; }

  //! Forgets everything learnt from a text: the next one may be of another kind.
  void reset() {
    budget_.reset();
    pauses_.reset();
    asks_ = false;
    share_ = usual_share;
    first_child_.reset();
    other_child_.reset();
    runs_.reset();
  }

  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    budget_.serialize(archive);
    pauses_.serialize(archive);
    first_child_.serialize(archive);
    other_child_.serialize(archive);
    runs_.serialize(archive);
    archive(share_);
  }

  using budget_type = round_budget;
  const round_budget& budget() const { return budget_.own(); }
  void open(const round_start& start) { budget_.open(start); }
  void join(round_budget& budget) { budget_.join(budget); }

  //! The reason for which the policy gave the last tree no more nodes.
  tree_limit limited_by() const { return limited_by_; }

  std::int32_t max_asked() const { return max_nodes(); }
  std::span<const node_id> was() const { return asked_.was(); }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    pauses_.begin_round();
    limit_ = (std::min)(tree.limit(), options_.budget);
    budget_.begin(limit_);
    const bool can_gain = now().can_gain((std::min)(limit_, options_.max_depth));
    asks_ = can_gain && pauses_->asks();
    limited_by_ = can_gain && !asks_ ? tree_limit::pause : tree_limit::price;
    best_.clear();
    n_worth_ = 0;
    depth_ = 1;
    reach_[0] = 1;
    runs_.begin_round();
    asked_.start();
    if (!asks_) asked_.next_level();
    return wanted(tree);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    consider(tree, rows, chance);
    now().decide();
    return choose(tree, rows, chance);
  }

  template <class TreeT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, token_run run, ChanceT&) {
    asks_ = false;  // no draft model was asked
    limited_by_ = tree_limit::price;
    const std::int32_t n = runs_.worth(run, limit_, [this](std::int32_t rows) { return now().of_rows(rows); });
    node_id u = root_node;
    for (const token_id token : run.tokens.first(static_cast<std::size_t>(n)))
      u = tree.append(u, token, 0.0F);
    if (n == std::ssize(run.tokens)) limited_by_ = tree_limit::policy;
    now().add_rows(n);
    return {};
  }

  template <class TreeT, class NumberT, class ChanceT>
  void consider(TreeT&, const node_rows<NumberT>& rows, ChanceT&) {
    const auto level = asked_.level();
    budget_.ask(static_cast<std::int32_t>(level.size()));
    for (std::size_t i = 0; i < level.size(); ++i)
      consider_children(level[i], reach_[i], rows, depth_);
    gains_ = {};
    const double worth = worth_of_best();
    if (depth_ < options_.max_depth) look_ahead(worth);
    now().offer(gains_);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> choose(TreeT& tree, const node_rows<NumberT>&, ChanceT&) {
    asked_.next_level();
    const std::size_t levels = now().levels();
    const bool asks = levels > 0 && gains_[levels - 1] > 0;
    for (std::size_t i = 0; asks && i < n_asked_[levels - 1]; ++i) {
      prefix& p = best_[frontier_[i].place];
      asked_.add(tree, p);
      if (p.node == no_node) break;
      reach_[i] = p.reach;
    }
    ++depth_;
    return wanted(tree);
  }

  void observe(tree_view tree, verdict v) {
    pauses_.keep();
    if (runs_.is_known())
      runs_.observe(tree, v);
    else
      observe_children(tree, v);
    const double gain = budget_.end(tree.n_nodes - 1, tree.depth[v.accepted] + 1);
    if (asks_) pauses_->observe(v.accepted != root_node, gain);
  }

  //! Tokens written per second, in the seconds of the cost model, over the last rounds in which the policy used its own
  //! budget; 0 before the first such round.
  double tokens_per_second() const { return budget().tokens_per_second(); }

 private:
  static constexpr std::int32_t max_breadth = 8;  // children of a node at most
  static constexpr std::int32_t most_ahead = 8;   // levels that the policy looks ahead at most
  // share_ at the beginning of a text
  static constexpr double usual_share = 0.8;
  static constexpr double share_weight = 0.05;  // weight of the latest observation in share_

  struct prefix : considered_node {
    double reach = 0;  // probability that the prefix is accepted
    std::int32_t depth = 0;
  };

  static bool is_better(const prefix& a, const prefix& b) {
    return a.reach > b.reach || (a.reach == b.reach && a.depth < b.depth);
  }

  // Learns from the children of the accepted nodes. If this is the first policy of a cascade, the children that other
  // policies have added do not count: their numbers come later.
  void observe_children(tree_view tree, verdict v) {
    // A verdict that was cut at a stop condition ends with a token of the tree, which was accepted, too.
    node_id taken = tree.find_child(v.accepted, v.token);
    for (node_id u = v.accepted; u != no_node; taken = u, u = tree.parent[u]) {
      acceptance_calibration* rank = &first_child_;
      for (const node_id child : tree.draws(u)) {
        if (child >= n_drafted_) break;
        if (rank == &first_child_) {
          share_ += share_weight * ((child == taken ? 1 : 0) - share_);
          now().add_first_child(child == taken);
        }
        rank->observe(std::exp(static_cast<double>(tree.log_prob[child])), child == taken);
        rank = &other_child_;
      }
    }
  }

  template <class TreeT>
  std::span<const node_id> wanted(TreeT& tree) {
    const auto level = asked_.level();
    if (!level.empty()) return level;
    if (asks_) {
      // A trial needs a token to learn from.
      if (pauses_->paused() && n_worth_ == 0 && !best_.empty()) n_worth_ = 1;
      if (depth_ > options_.max_depth && n_worth_ == best_.size()) limited_by_ = tree_limit::policy;
      asked_.rebuild(tree, std::span(best_).first(n_worth_));
    }
    n_drafted_ = tree.size();
    now().add_rows(n_drafted_ - 1);
    return level;
  }

  // Sets n_worth_ to the number n at which the expected number of accepted tokens of the n best prefixes, less the
  // price of their rows, is greatest. Returns this greatest difference.
  double worth_of_best() {
    double expected = 0, most = 0;
    n_worth_ = 0;
    for (std::size_t n = 1; n <= best_.size(); ++n) {
      expected += best_[n - 1].reach;
      const double worth = expected - now().of_rows(static_cast<std::int32_t>(n));
      if (worth > most) most = worth, n_worth_ = n;
    }
    return most;
  }

  // Sets gains_ to the gain over `worth` from one further level, from two, and so on: the price of the nodes is
  // subtracted, the price of the passes not yet. Sets n_asked_ to the number of best nodes of the frontier that must be
  // asked about for each of these gains.
  void look_ahead(double worth) {
    frontier_.clear();
    for (std::size_t i = 0; i < best_.size(); ++i) {
      if (best_[i].depth == depth_) frontier_.push_back({best_[i].reach, i});
    }
    const auto levels = static_cast<std::size_t>((std::min)(options_.max_depth - depth_, most_ahead));
    const double pass = now().of_pass(1);
    double most = 0;
    std::size_t best_n = 0;
    for (std::size_t n = 1; n <= frontier_.size() && n <= best_n + 2; ++n) {
      ahead_.clear();
      for (const prefix& p : best_)
        ahead_.push_back(p.reach);
      const double nodes = now().of_nodes(static_cast<std::int32_t>(n));
      double share = 1;
      for (std::size_t m = 0; m < levels; ++m) {
        share *= share_;
        for (std::size_t i = 0; i < n; ++i)
          expect(frontier_[i].reach * share);
        const auto passes = static_cast<double>(m + 1);
        const double gain = worth_of_ahead() - worth - passes * nodes;
        if (gain > gains_[m]) gains_[m] = gain, n_asked_[m] = n;
        if (gain - passes * pass > most) most = gain - passes * pass, best_n = n;
      }
    }
  }

  void expect(double reach) {
    const auto at = std::upper_bound(ahead_.begin(), ahead_.end(), reach, [](double a, double b) { return a > b; });
    if (at - ahead_.begin() >= limit_) return;
    ahead_.insert(at, reach);
    if (ahead_.size() > static_cast<std::size_t>(limit_)) ahead_.pop_back();
  }

  double worth_of_ahead() const {
    double expected = 0, most = 0;
    for (std::size_t n = 1; n <= ahead_.size(); ++n) {
      expected += ahead_[n - 1];
      most = (std::max)(most, expected - now().of_rows(static_cast<std::int32_t>(n)));
    }
    return most;
  }

  template <class NumberT>
  void consider_children(node_id u, double reach, const node_rows<NumberT>& rows, std::int32_t depth) {
    candidate<NumberT> top[max_breadth];
    const std::int32_t n = top_k(rows, u, std::span(top));
    double left = 1;  // at most one child is accepted: the probabilities add up to 1 at most
    double most = 1;  // the probabilities of acceptance fall as the draft's do
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
      best_.insert(at, p);
      if (best_.size() > static_cast<std::size_t>(limit_)) best_.pop_back();
    }
  }

  round_budget& now() { return budget_.now(); }
  const round_budget& now() const { return budget_.now(); }

  struct frontier_node {
    double reach;
    std::size_t place;  // index among the best prefixes
  };

  cost_aware_options options_;
  text_budget budget_;
  provisional<draft_pauses> pauses_;
  // Calibrations that begin with priors. The most probable child is accepted more often than the draft says, since it
  // is the likeliest to be the target's most probable token, too; the others as often as the draft says.
  acceptance_calibration first_child_{{0.9, 1.0}};
  acceptance_calibration other_child_{{0.0, 1.0}};
  run_acceptance runs_;
  asked_nodes asked_;
  tree_limit limited_by_ = tree_limit::policy;
  double share_ = usual_share;           // share of most probable children that were accepted after their parents
  std::vector<double> reach_;            // [budget] probability that each node of the level is reached
  std::vector<prefix> best_;             // the best prefixes so far, best first
  std::vector<double> ahead_;            // probabilities of the best prefixes of an expected tree, best first
  std::vector<frontier_node> frontier_;  // nodes that may be asked about next, best first
  std::size_t n_worth_ = 0;              // number of best prefixes that are worth their rows
  // by number of further levels: the gain, and the number of nodes to ask about for it
  round_budget::gains gains_{};
  std::array<std::size_t, round_budget::max_ahead> n_asked_{};
  std::int32_t limit_ = 0;
  node_id n_drafted_ = 0;   // number of nodes of this policy's tree in this round, the root included
  std::int32_t depth_ = 1;  // depth of the children of the level
  bool asks_ = false;       // whether the draft is asked in this round
};

}  // namespace espalier
