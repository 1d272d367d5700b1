// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/regime.hpp"
#include "espalier/concepts/round_start.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_limit.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/sampling/log_prob.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/tree_policy/cost_aware/acceptance_calibration.hpp"
#include "espalier/tree_policy/cost_aware/cost_aware_options.hpp"
#include "espalier/tree_policy/cost_aware/draft_pauses.hpp"
#include "espalier/tree_policy/cost_aware/round_budget.hpp"
#include "espalier/tree_policy/cost_aware/text_budget.hpp"
#include "espalier/tree_policy/growth/provisional.hpp"

namespace espalier {

//! Drafts by sampling, as far as that pays: cost_aware for sampled drafts. The tree is a path, drawn as long as its
//! next token is expected to gain more tokens than could otherwise be written in the time that it takes. Further draws
//! without replacement are added beside the path if they are worth their rows. draft_pauses decides whether the draft
//! is asked at all, by the tokens that it has gained in this text.
//!
//! - The draft is asked about one node at a time: if both models sample, a longer path is nearly always worth more than
//!   a second one.
//! - The probability that a draw is accepted is estimated from the largest probability of its row, calibrated by which
//!   draws were accepted or rejected recently. The drawn token's own probability would add nearly nothing.
//! - A node is drawn from again at once if its next draw is likelier to be accepted than the one before, as with a
//!   draft whose first choice is always wrong. The path goes on from the last of these draws.
//!
//! Complexity  one draft pass over one row a level. A row is read once for its largest probability and once for each
//!             draw; a draw takes O(max_depth + c * c) in addition, where c is the number of the node's earlier draws.
//!             No allocation after construction
//! Law         a drawn token is kept whatever it is. Whether and where to draw next follows from rows and counts, never
//!             from the token about to be drawn. The tree depends on nothing but the options, the costs, the rows, the
//!             chance, the text's length, the room that is left, the verdicts of the text's earlier rounds, and the
//!             budget that it shares, if it does
//! Errors      option_error for options out of range
//! Source      ours; further draws are made as in DySpec
class cost_aware_draws {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit cost_aware_draws(cost_aware_options options = {}) : cost_aware_draws(options, options.costs()) {}

  cost_aware_draws(cost_aware_options options, cost_model costs)
      : options_(require_options(options)),
        budget_(std::move(costs), options.budget, options.max_depth),
        largest_(static_cast<std::size_t>(options.budget) + 1) {
    asked_.reserve(static_cast<std::size_t>(options.max_depth));
  }

  std::int32_t max_nodes() const { return options_.budget; }

  //! Forgets everything learnt from a text: the next one may be of another kind.
  void reset() {
    budget_.reset();
    round_.reset();
    first_draw_.reset();
    later_draw_.reset();
    asked_.clear();
  }

  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    budget_.serialize(archive);
    round_.serialize(archive);
    first_draw_.serialize(archive);
    later_draw_.serialize(archive);
  }

  using budget_type = round_budget;
  const round_budget& budget() const { return budget_.own(); }
  void open(const round_start& start) { budget_.open(start); }
  void join(round_budget& budget) { budget_.join(budget); }

  //! The reason for which the policy gave the last tree no more nodes.
  tree_limit limited_by() const { return limited_by_; }

  template <class TreeT>
  std::span<const node_id> begin(TreeT& tree) {
    round_.begin_round();
    limit_ = (std::min)(tree.limit(), options_.budget);
    budget_.begin(limit_);
    asked_.clear();
    limited_by_ = tree_limit::price;
    if (!now().can_gain((std::min)(limit_, options_.max_depth))) return {};
    if (round_->pauses.asks()) return ask(root_node, 1);
    limited_by_ = tree_limit::pause;
    return {};
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> take(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    consider(tree, rows, chance);
    now().decide();
    return choose(tree, rows, chance);
  }

  template <class TreeT, class NumberT, class ChanceT>
  void consider(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    const bool is_trial = round_->pauses.paused();
    const auto depth = static_cast<std::int32_t>(asked_.size());
    asked_node& from = asked_.back();
    look_at(rows.row(from.node), from);
    node_id& tip = tip_ = no_node;
    double& reach = reach_ = 0;
    while (!full(tree)) {
      const double next = expected(from);
      const bool wanted = next > reach && pays(next, depth, tree.view().n_draws);
      // A trial makes two draws, to learn how likely a first one and a later one are to be accepted.
      if (!wanted && !(is_trial && from.n_draws < 2)) break;
      const node_id child = draw(tree, from, rows, chance);
      if (child == no_node) {
        tip = no_node;
        break;
      }
      tip = child;
      reach = next;
    }
    const std::int32_t last = is_trial ? 1 : options_.max_depth;
    limited_by_ = tip != no_node && depth == last ? tree_limit::policy : tree_limit::price;
    gains_ = {};
    if (tip != no_node && depth < last && !full(tree)) look_ahead(reach, depth, tree.view().n_draws);
    now().offer(gains_);
  }

  template <class TreeT, class NumberT, class ChanceT>
  std::span<const node_id> choose(TreeT& tree, const node_rows<NumberT>& rows, ChanceT& chance) {
    const std::size_t levels = now().levels();
    if (levels > 0 && gains_[levels - 1] > 0) return ask(tip_, reach_);
    fill(tree, rows, chance);
    now().add_rows(tree.size() - 1);
    return {};
  }

  void observe(tree_view tree, verdict v) {
    round_.keep();
    // v.token is usually the target's own. If a stop condition cut the verdict, it is a drafted token that was
    // accepted: then its node counts as taken.
    node_id taken = tree.find_child(v.accepted, v.token);
    for (node_id u = v.accepted; u != no_node; taken = u, u = tree.parent[u]) {
      std::int32_t n_draws = 0;
      for (const node_id child : tree.draws(u)) {
        if (n_draws == 0) now().add_first_child(child == taken);
        calibration(n_draws++).observe(largest_[at(u)], child == taken);
        if (child == taken) break;  // later draws were not tested
      }
    }
    const double gain = budget_.end(tree.n_nodes - 1, tree.depth[v.accepted] + 1);
    if (!asked_.empty()) round_->pauses.observe(v.accepted != root_node, gain);
  }

  //! Tokens written per second, in the seconds of the cost model, over the last rounds in which the policy used its own
  //! budget; 0 before the first such round.
  double tokens_per_second() const { return budget().tokens_per_second(); }

 private:
  // Weight of the latest row in the mean if its node is certain to be reached; else times the probability of that.
  static constexpr double confidence_weight = 0.05;

  struct round_state {
    draft_pauses pauses;
    double confidence = 1;  // mean log-odds of the largest probability of recent rows

    template <class ArchiveT>
    void serialize(ArchiveT& archive) {
      pauses.serialize(archive);
      archive(confidence);
    }
  };

  round_budget& now() { return budget_.now(); }
  const round_budget& now() const { return budget_.now(); }

  struct asked_node {
    double reach;  // probability that the next draw from it is tested
    node_id node;
    std::int32_t n_draws;
  };

  static std::size_t at(node_id u) { return static_cast<std::size_t>(u); }

  acceptance_calibration& calibration(std::int32_t n_draws) { return n_draws == 0 ? first_draw_ : later_draw_; }
  const acceptance_calibration& calibration(std::int32_t n_draws) const {
    return n_draws == 0 ? first_draw_ : later_draw_;
  }

  template <class TreeT>
  bool full(const TreeT& tree) const {
    return tree.view().n_draws >= limit_;
  }

  std::span<const node_id> ask(node_id u, double reach) {
    budget_.ask(1);
    asked_.push_back({reach, u, 0});
    return {&asked_.back().node, 1};
  }

  template <class NumberT>
  void look_at(std::span<const NumberT> row, const asked_node& from) {
    // max_logit finds the largest number of any row; this row holds probabilities.
    const double largest = largest_[at(from.node)] =
        static_cast<double>(max_logit(row, row_origin::after_node(row_origin::model::draft, -1, from.node)));
    round_->confidence +=
        confidence_weight * from.reach * (acceptance_calibration::log_odds(largest) - round_->confidence);
  }

  // The probability that the next draw from a node is tested and accepted.
  double expected(const asked_node& from) const {
    return from.reach > 0 ? from.reach * calibration(from.n_draws).probability(largest_[at(from.node)]) : 0;
  }

  // True if a draw that is accepted with probability `reach`, together with a path that may follow it, is expected to
  // gain more tokens than the price of their rows and passes.
  bool pays(double reach, std::int32_t depth, std::int32_t drawn) const {
    const path_ahead ahead = path();
    const double pass = now().of_pass(1);
    double gain = reach;
    for (std::int32_t n = drawn + 1; n <= limit_; n += ahead.rows) {
      if (gain > now().of_rows(n) - now().of_rows(drawn)) return true;
      if (depth++ == options_.max_depth) return false;
      reach *= ahead.share;
      gain += reach - pass;
    }
    return false;
  }

  // Sets gains_ to the expected gain, less the price of the rows, of a path that goes on for one level after the last
  // draw, for two levels, and so on. `reach` is the probability that the last draw is accepted.
  void look_ahead(double reach, std::int32_t depth, std::int32_t drawn) {
    const path_ahead ahead = path();
    double gain = 0;
    for (std::size_t m = 0; m < round_budget::max_ahead; ++m) {
      const std::int32_t n = drawn + static_cast<std::int32_t>(m + 1) * ahead.rows;
      if (n > limit_ || depth++ == options_.max_depth) return;
      reach *= ahead.share;
      gain += reach;
      gains_[m] = gain - (now().of_rows(n) - now().of_rows(drawn));
    }
  }

  // An estimate of each further level of the path, from recent rows and verdicts.
  struct path_ahead {
    double share;       // probability that the path reaches the next level, once it has reached this one
    std::int32_t rows;  // draws for each level
  };
  path_ahead path() const {
    const double first = first_draw_.at(round_->confidence);
    const double second = (1 - first) * later_draw_.at(round_->confidence);
    return {(std::max)(first, second), second > first ? 2 : 1};
  }

  // Draws from a node that was asked about. Returns the new node, or no_node if nothing is left of its row.
  template <class TreeT, class RowsT, class ChanceT>
  node_id draw(TreeT& tree, asked_node& from, const RowsT& rows, ChanceT& chance) {
    const undrawn left(tree.view(), from.node, rows.row(from.node));
    const undrawn_draw drawn = left.draw(chance, {from.node, from.n_draws, purpose::draft});
    from.reach -= expected(from);
    ++from.n_draws;
    if (drawn.token < 0) {
      from.reach = 0;
      return no_node;
    }
    return tree.append(from.node, drawn.token, detail::log_prob_of(drawn.probability));
  }

  // Makes further draws, which stay leaves: always the one that is likeliest to be accepted, as long as it is worth its
  // row.
  template <class TreeT, class RowsT, class ChanceT>
  void fill(TreeT& tree, const RowsT& rows, ChanceT& chance) {
    while (!full(tree)) {
      asked_node& best = *std::max_element(asked_.begin(), asked_.end(), [&](const asked_node& a, const asked_node& b) {
        return expected(a) < expected(b);
      });
      const std::int32_t drawn = tree.view().n_draws;
      if (!(expected(best) > now().of_rows(drawn + 1) - now().of_rows(drawn))) return;
      draw(tree, best, rows, chance);
    }
  }

  cost_aware_options options_;
  text_budget budget_;
  provisional<round_state> round_;
  // Calibrations of the acceptance of draws. Their priors fit two language models of one kind at temperature 1. Texts
  // of one pair of models differ little in how often first draws are accepted, so the prior of first draws weighs as
  // much as some thirty observations.
  acceptance_calibration first_draw_{{1.5, 0.3}, 6};  // for a first draw, by the largest probability of its row
  acceptance_calibration later_draw_{{-1.2, 0}};      // for a later draw, if the draws before it were rejected
  std::vector<double> largest_;    // [budget + 1] largest probability of each node's row, if it was asked for
  std::vector<asked_node> asked_;  // nodes asked about in this round
  round_budget::gains gains_{};    // gain from each number of further levels
  node_id tip_ = no_node;          // the node at which the path may go on; reach_ is the probability that it is reached
  double reach_ = 0;
  tree_limit limited_by_ = tree_limit::policy;
  std::int32_t limit_ = 0;
};

}  // namespace espalier
