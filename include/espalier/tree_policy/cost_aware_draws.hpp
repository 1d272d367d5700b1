// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/tree_policy/acceptance_calibration.hpp"
#include "espalier/tree_policy/cost_aware_options.hpp"
#include "espalier/tree_policy/draft_pauses.hpp"
#include "espalier/tree_policy/log_prob.hpp"
#include "espalier/tree_policy/provisional.hpp"
#include "espalier/tree_policy/round_start.hpp"
#include "espalier/tree_policy/throughput_price.hpp"

namespace espalier {

//! cost_aware for sampling: DySpec's draws without replacement, level by level, as long as they are expected to gain more tokens
//! than could be written otherwise in the time that they take; none where that holds for no draw at all.
//!
//! Whether a node is drawn from once more follows from its row and from how often it was drawn from; which children are asked
//! about, from the draft's probabilities of what was drawn. Both are calibrated by what was accepted lately. A level is asked about
//! if its nodes, and those expected below them, are worth their passes and rows; draws that nobody goes on from fill the tree
//! in the end, as long as they are worth their rows.
//!
//! Complexity  one draft pass a level; a draw is one or two passes over a row, one for each further draw of the same node, and O(nodes
//!             asked about * log) in the end. No allocation after construction
//! Law         a token that was drawn is kept whatever it is; whether and where to draw next follows from what was drawn before,
//!             never from the token about to be drawn. The tree depends on the options, the costs, the rows, the chance and the verdicts of the text's earlier rounds alone
//! Errors      option_error as cost_aware_options::checked()
//! Source      ours; reach as DySpec's, the acceptance calibrated
class cost_aware_draws {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit cost_aware_draws(cost_aware_options options = {}) : cost_aware_draws(options, options.costs()) {}

  cost_aware_draws(cost_aware_options options, cost_model costs)
      : options_(options.checked()),
        price_(std::move(costs), options.budget),
        largest_(static_cast<std::size_t>(options.budget) + 1),
        share_(largest_.size()) {
    asked_.reserve(largest_.size());
    frontier_.reserve(largest_.size());
    level_.reserve(largest_.size());
    pending_.reserve(largest_.size());
  }

  std::int32_t max_nodes() const { return options_.budget; }

  //! What was learnt of a text is forgotten: the next one may be of another kind.
  void reset() {
    price_.reset();
    round_.reset();
    first_token_.reset();
    later_token_.reset();
    first_draw_.reset();
    later_draw_.reset();
  }

  void open(const round_start& start) { price_.open(start.length - 1); }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    round_.begin_round();
    limit_ = (std::min)(tree.limit(), options_.budget);
    price_.begin_round(limit_);
    asks_ = false;
    if (limit_ > 0 && !round_->pauses.holds()) draft(tree, drafter, chance);
    price_.end_round(tree.size() - 1);
  }

  void observe(tree_view tree, verdict v) {
    round_.keep();
    // Where the session has cut the verdict, its token may be one that was accepted, too.
    node_id taken = tree.find_child(v.accepted, v.token);
    for (node_id u = v.accepted; u != no_node; taken = u, u = tree.parent[u]) {
      bool is_first = true;
      for (const node_id child : tree.draws(u)) {
        const bool accepted = child == taken;
        (is_first ? first_token_ : later_token_).observe(share_[at(child)], accepted);
        (is_first ? first_draw_ : later_draw_).observe(largest_[at(u)], accepted);
        if (accepted) break;  // the later ones were not needed
        is_first = false;
      }
    }
    price_.observe(tree.depth[v.accepted] + 1);
    if (asks_) round_->pauses.observe(v.accepted != root_node);
  }

  //! Tokens a second of the last rounds, in the seconds of the cost model.
  double tokens_per_second() const { return price_.tokens_per_second(); }

 private:
  static constexpr std::int32_t max_ahead = 8;       // levels that are expected beyond those that were asked about
  static constexpr double confidence_weight = 0.05;  // of a new node among those that make up the mean

  struct round_state {
    draft_pauses pauses;
    double confidence = 0;  // mean log-odds of the largest probability of rows that were lately asked for
  };

  struct frontier_node {
    double reach;  // the probability that it is accepted
    node_id node;
  };

  struct asked_node {
    double reach;  // the probability that the next draw from it is looked at
    node_id node;
    std::int32_t n_draws;
  };

  static std::size_t at(node_id u) { return static_cast<std::size_t>(u); }

  template <class TreeT, class DrafterT, class ChanceT>
  void draft(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    asked_.clear();
    frontier_.assign(1, {1.0, root_node});
    const bool is_trial = round_->pauses.paused();
    std::size_t n = worth_asking(0, 0);
    // What is expected is that first draws are accepted. Where others are, it shows in the rounds before.
    if (is_trial || (round_->pauses.succeeded() && price_.can_pay())) n = 1;
    if (is_trial) planned_ = 0;
    if (n == 0) return round_->pauses.begin();
    asks_ = true;
    const std::int32_t last = is_trial ? 1 : options_.max_depth;
    for (std::int32_t depth = 1; n > 0; ++depth) {
      ask(tree, drafter, chance, n);
      if (depth == last || full(tree)) break;
      std::sort(frontier_.begin(), frontier_.end(), [](const frontier_node& a, const frontier_node& b) {
        return a.reach > b.reach || (a.reach == b.reach && a.node < b.node);
      });
      n = worth_asking(depth, tree.view().n_draws);
    }
    // A trial needs a token to learn from.
    if (is_trial && tree.view().n_draws == 0) draw(tree, asked_[0], drafter.rows().row(root_node), chance);
    if (!is_trial) fill(tree, drafter, chance);
  }

  template <class TreeT>
  bool full(const TreeT& tree) const {
    return tree.view().n_draws >= limit_;
  }

  // Asks about the first n of the frontier, and draws once from each where that is worth its row; a new frontier.
  template <class TreeT, class DrafterT, class ChanceT>
  void ask(TreeT& tree, DrafterT& drafter, ChanceT& chance, std::size_t n) {
    level_.clear();
    const std::size_t first = asked_.size();
    for (std::size_t i = 0; i < n; ++i) {
      level_.push_back(frontier_[i].node);
      asked_.push_back({frontier_[i].reach, frontier_[i].node, 0});
    }
    frontier_.clear();
    price_.add_pass(static_cast<std::int32_t>(n));
    const auto rows = drafter.propose(tree, std::span<const node_id>(level_));
    for (std::size_t i = 0; i < n; ++i) {
      asked_node& from = asked_[first + i];
      const auto row = rows.row(static_cast<std::int32_t>(i));
      const double largest = static_cast<double>(*std::max_element(row.begin(), row.end()));
      largest_[at(from.node)] = largest;
      round_->confidence +=
          confidence_weight * from.reach * (acceptance_calibration::log_odds(largest) - round_->confidence);
    }
    for (std::size_t i = first; i < asked_.size(); ++i) {
      asked_node& from = asked_[i];
      const auto row = rows.row(static_cast<std::int32_t>(i - first));
      while (!full(tree) && is_worth_going_on(tree, from)) {
        const double reach = from.reach;
        const node_id child = draw(tree, from, row, chance);
        if (child == no_node) break;
        frontier_.push_back({reach - from.reach, child});
      }
    }
  }

  // The probability that the next draw from a node is looked at and accepted.
  double expected(const asked_node& from) const {
    if (!(from.reach > 0)) return 0;
    return from.reach * (from.n_draws == 0 ? first_draw_ : later_draw_).probability(largest_[at(from.node)]);
  }

  // Whether another draw, and the one that may follow it a level further down, is worth a row beyond those that the levels to come
  // are expected to take.
  template <class TreeT>
  bool is_worth_going_on(const TreeT& tree, const asked_node& from) const {
    const std::int32_t ahead = from.n_draws == 0 ? 0 : planned_;
    const std::int32_t n = (std::min)(tree.view().n_draws + ahead, limit_ - 1);
    return expected(from) * (1 + child_acceptance()) > price_.of_rows(n + 1) - price_.of_rows(n);
  }

  // Draws from a node that was asked about; no_node where its row has given all it can.
  template <class TreeT, class NumberT, class ChanceT>
  node_id draw(TreeT& tree, asked_node& from, std::span<const NumberT> row, ChanceT& chance) {
    const undrawn left(tree.view(), from.node, row);
    const double mass = from.n_draws == 0 ? 1 : detail::mass(left);
    const token_id token = mass > 0 ? chance.pick(left, {from.node, from.n_draws, purpose::draft}) : -1;
    if (token < 0) {
      from.reach = 0;
      return no_node;
    }
    const auto probability = static_cast<double>(row[static_cast<std::size_t>(token)]);
    const node_id child = tree.append(from.node, token, detail::log_prob_of(probability));
    const double share = share_[at(child)] = (std::min)(1.0, probability / mass);
    const double rejected = 1 - (from.n_draws == 0 ? first_token_ : later_token_).probability(share);
    from.reach *= rejected;
    ++from.n_draws;
    return child;
  }

  // Further draws that nobody goes on from: the one that is likeliest to be accepted first, as long as it, or it and those that
  // come after it, are worth their rows.
  template <class TreeT, class DrafterT, class ChanceT>
  void fill(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    while (!full(tree)) {
      pending_.clear();
      for (const asked_node& from : asked_)
        pending_.push_back(expected(from));
      const auto best = std::max_element(pending_.begin(), pending_.end()) - pending_.begin();
      std::sort(pending_.begin(), pending_.end(), std::greater<>());
      const std::int32_t drawn = tree.view().n_draws;
      double gain = 0, most = 0;
      for (std::int32_t n = drawn; n < limit_ && n - drawn < static_cast<std::int32_t>(pending_.size()); ++n) {
        gain += pending_[static_cast<std::size_t>(n - drawn)];
        most = (std::max)(most, gain - (price_.of_rows(n + 1) - price_.of_rows(drawn)));
      }
      if (!(most > 0)) return;
      asked_node& from = asked_[static_cast<std::size_t>(best)];
      draw(tree, from, drafter.rows().row(from.node), chance);
    }
  }

  double child_acceptance() const { return first_draw_.at(round_->confidence); }

  // How many of the frontier, the best first, to ask about; none where they, and what is expected below them, are not worth it.
  std::size_t worth_asking(std::int32_t depth, std::int32_t drawn) {
    const double child = child_acceptance();
    const std::int32_t levels = (std::min)(options_.max_depth - depth, max_ahead);
    std::size_t best_n = 0;
    double worth = 0;
    planned_ = 0;
    for (std::size_t n = 1; n <= frontier_.size() && n <= best_n + 2; ++n) {
      const auto rows = static_cast<std::int32_t>(n);
      double reach = 0, share = 1, gain = 0;
      for (std::size_t i = 0; i < n; ++i)
        reach += frontier_[i].reach;
      for (std::int32_t level = 1; level <= levels && drawn + level * rows <= limit_; ++level) {
        share *= child;
        gain += reach * share - (level == 1 ? price_.of_pass(rows) : price_.of_later_pass(rows));
        const double then = gain - (price_.of_rows(drawn + level * rows) - price_.of_rows(drawn));
        if (then > worth) worth = then, best_n = n, planned_ = level * rows;
      }
    }
    return best_n;
  }

  cost_aware_options options_;
  throughput_price price_;
  provisional<round_state> round_;
  // Priors: of what two language models of one kind do at temperature 1.
  acceptance_calibration first_token_{{0.9, 0.25}};  // of a first draw, by its probability
  acceptance_calibration later_token_{{-1.7, 0.2}};  // of a later one, by its share of what the earlier ones left
  acceptance_calibration first_draw_{{0.6, 0.35}};   // of a first draw, by the largest probability of its row
  acceptance_calibration later_draw_{{-2.0, 0.1}};   // of a later one
  std::vector<double> largest_;                      // [budget + 1] probability of a node's row, where it was asked for
  std::vector<double> share_;            // [budget + 1] probability that a node's token had when it was drawn
  std::vector<asked_node> asked_;        // in this round
  std::vector<frontier_node> frontier_;  // what may be asked about next, best first
  std::vector<node_id> level_;
  std::vector<double> pending_;  // [asked_] what the next draw of each is expected to gain
  std::int32_t planned_ = 0;     // rows that are expected of the levels to come
  std::int32_t limit_ = 0;
  bool asks_ = false;  // in this round
};

}  // namespace espalier
