// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cost/cost_model.hpp"
#include "espalier/sampling/softmax.hpp"
#include "espalier/sampling/undrawn.hpp"
#include "espalier/tree_policy/acceptance_calibration.hpp"
#include "espalier/tree_policy/cost_aware_options.hpp"
#include "espalier/tree_policy/draft_pauses.hpp"
#include "espalier/tree_policy/log_prob.hpp"
#include "espalier/tree_policy/provisional.hpp"
#include "espalier/tree_policy/round_start.hpp"
#include "espalier/tree_policy/throughput_price.hpp"

namespace espalier {

//! cost_aware for sampling: a path that is drawn as long as it is expected to gain more tokens than could be written otherwise in
//! the time that it takes, with further draws without replacement beside it where these are worth their rows. Whether the draft
//! is asked at all follows from what it has gained in this text (draft_pauses).
//!
//! The draft is asked about one node at a time, since where both sample, a longer path is nearly always worth more than a
//! second one. How likely draws are to be accepted follows from the largest probability of the row that they are from, calibrated by
//! what was accepted lately: what the drawn tokens' own probabilities are tells no more. A node that was asked about is
//! drawn from again at once while the next draw is likelier to be accepted than the one before, as where a draft's first choice
//! is always wrong; the path goes on from the last one.
//!
//! Complexity  one draft pass over one row a level; a pass over the row for its largest probability, one for a first draw, two for a
//!             further one; O(max_depth) beside. No allocation after construction
//! Law         a token that was drawn is kept whatever it is; whether and where to draw next follows from rows and counts,
//!             never from the token about to be drawn. The tree depends on the options, the costs, the rows, the chance and the
//!             verdicts of the text's earlier rounds alone
//! Errors      option_error as cost_aware_options::checked()
//! Source      ours; further draws as DySpec's
class cost_aware_draws {
 public:
  static constexpr regime sampling = regime::without_replacement;

  explicit cost_aware_draws(cost_aware_options options = {}) : cost_aware_draws(options, options.costs()) {}

  cost_aware_draws(cost_aware_options options, cost_model costs)
      : options_(options.checked()),
        price_(std::move(costs), options.budget),
        largest_(static_cast<std::size_t>(options.budget) + 1) {
    asked_.reserve(static_cast<std::size_t>(options.max_depth));
  }

  std::int32_t max_nodes() const { return options_.budget; }

  //! What was learnt of a text is forgotten: the next one may be of another kind.
  void reset() {
    price_.reset();
    round_.reset();
    first_draw_.reset();
    later_draw_.reset();
    asked_.clear();
  }

  void open(const round_start& start) { price_.open(start.length - 1); }

  template <class TreeT, StepDrafter DrafterT, class ChanceT>
  void grow(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    round_.begin_round();
    limit_ = (std::min)(tree.limit(), options_.budget);
    price_.begin_round(limit_);
    asked_.clear();
    if (price_.can_gain((std::min)(limit_, options_.max_depth)) && round_->pauses.asks()) draft(tree, drafter, chance);
    price_.end_round(tree.size() - 1);
  }

  void observe(tree_view tree, verdict v) {
    round_.keep();
    // Where the session has cut the verdict, its token may be one that was accepted, too.
    node_id taken = tree.find_child(v.accepted, v.token);
    for (node_id u = v.accepted; u != no_node; taken = u, u = tree.parent[u]) {
      std::int32_t n_draws = 0;
      for (const node_id child : tree.draws(u)) {
        calibration(n_draws++).observe(largest_[at(u)], child == taken);
        if (child == taken) break;  // the later ones were not needed
      }
    }
    price_.observe(tree.depth[v.accepted] + 1);
    if (!asked_.empty()) round_->pauses.observe(v.accepted != root_node, price_.gain());
  }

  //! Tokens a second of the last rounds, in the seconds of the cost model.
  double tokens_per_second() const { return price_.tokens_per_second(); }

 private:
  static constexpr double confidence_weight = 0.05;  // of a new row among those that make up the mean

  struct round_state {
    draft_pauses pauses;
    double confidence = 1;  // mean log-odds of the largest probability of rows that were lately asked for
  };

  struct asked_node {
    double reach;  // the probability that the next draw from it is looked at
    node_id node;
    std::int32_t n_draws;
  };

  static std::size_t at(node_id u) { return static_cast<std::size_t>(u); }

  acceptance_calibration& calibration(std::int32_t n_draws) { return n_draws == 0 ? first_draw_ : later_draw_; }
  const acceptance_calibration& calibration(std::int32_t n_draws) const {
    return n_draws == 0 ? first_draw_ : later_draw_;
  }

  template <class TreeT, class DrafterT, class ChanceT>
  void draft(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    const bool is_trial = round_->pauses.paused();
    const std::int32_t last = is_trial ? 1 : options_.max_depth;
    double reach = 1;
    node_id tip = root_node;
    for (std::int32_t depth = 1; tip != no_node; ++depth) {
      asked_.push_back({reach, tip, 0});
      asked_node& from = asked_.back();
      const auto row = ask(tree, drafter, from);
      tip = no_node;
      for (double before = 0; !full(tree); before = reach) {
        const double next = expected(from);
        const bool wanted = next > before && pays(next, 1, depth, tree.view().n_draws);
        // A trial tells how likely both are: what comes first, and what comes where that is wrong.
        if (!wanted && !(is_trial && from.n_draws < 2)) break;
        const node_id child = draw(tree, from, row, chance);
        if (child == no_node) break;
        tip = child;
        reach = next;
      }
      if (tip == no_node || depth == last || full(tree) || !pays(reach, 0, depth, tree.view().n_draws)) break;
    }
    fill(tree, drafter, chance);
  }

  template <class TreeT>
  bool full(const TreeT& tree) const {
    return tree.view().n_draws >= limit_;
  }

  template <class TreeT, class DrafterT>
  auto ask(TreeT& tree, DrafterT& drafter, const asked_node& from) {
    price_.add_pass(1);
    const auto row = drafter.propose(tree, std::span(&from.node, 1)).row(0);
    // Of probabilities here.
    const double largest = largest_[at(from.node)] = static_cast<double>(max_logit(row, 0));
    round_->confidence +=
        confidence_weight * from.reach * (acceptance_calibration::log_odds(largest) - round_->confidence);
    return row;
  }

  // The probability that the next draw from a node is looked at and accepted.
  double expected(const asked_node& from) const {
    return from.reach > 0 ? from.reach * calibration(from.n_draws).probability(largest_[at(from.node)]) : 0;
  }

  // Whether a draw that is accepted with this probability, or the path that may follow it, is worth more than its passes and
  // rows cost. With rows == 0, the draw has been made, and what may follow must be worth it alone.
  bool pays(double reach, std::int32_t rows, std::int32_t depth, std::int32_t drawn) const {
    const double first = first_draw_.at(round_->confidence);
    const double second = (1 - first) * later_draw_.at(round_->confidence);
    const double child = (std::max)(first, second);
    const double pass = price_.of_pass(1);
    double gain = rows * reach;
    for (std::int32_t n = drawn + rows; n <= limit_; n += second > first ? 2 : 1) {
      if (n > drawn && gain > price_.of_rows(n) - price_.of_rows(drawn)) return true;
      if (depth++ == options_.max_depth) return false;
      reach *= child;
      gain += reach - pass;
    }
    return false;
  }

  // Draws from a node that was asked about; no_node where its row has given all it can.
  template <class TreeT, class NumberT, class ChanceT>
  node_id draw(TreeT& tree, asked_node& from, std::span<const NumberT> row, ChanceT& chance) {
    const place here{from.node, from.n_draws, purpose::draft};
    token_id token = -1;
    if (from.n_draws == 0) {
      token = chance.pick(row, here);
    } else if (const undrawn left(tree.view(), from.node, row); detail::mass(left) > 0) {
      token = chance.pick(left, here);
    }
    from.reach -= expected(from);
    ++from.n_draws;
    if (token < 0) {
      from.reach = 0;
      return no_node;
    }
    return tree.append(from.node, token,
                       detail::log_prob_of(static_cast<double>(row[static_cast<std::size_t>(token)])));
  }

  // Further draws that nobody goes on from: the one that is likeliest to be accepted first, as long as it is worth its row.
  template <class TreeT, class DrafterT, class ChanceT>
  void fill(TreeT& tree, DrafterT& drafter, ChanceT& chance) {
    while (!full(tree)) {
      asked_node& best = *std::max_element(asked_.begin(), asked_.end(), [&](const asked_node& a, const asked_node& b) {
        return expected(a) < expected(b);
      });
      const std::int32_t drawn = tree.view().n_draws;
      if (!(expected(best) > price_.of_rows(drawn + 1) - price_.of_rows(drawn))) return;
      draw(tree, best, drafter.rows().row(best.node), chance);
    }
  }

  cost_aware_options options_;
  throughput_price price_;
  provisional<round_state> round_;
  // Priors: of what two language models of one kind do at temperature 1. Texts of one pair differ little in first draws: there
  // the prior weighs as much as some thirty of them.
  acceptance_calibration first_draw_{{1.5, 0.3}, 6};  // of a first draw, by the largest probability of its row
  acceptance_calibration later_draw_{{-1.2, 0}};      // of a later one, where those before it have failed
  std::vector<double> largest_;    // [budget + 1] probability of a node's row, where it was asked for
  std::vector<asked_node> asked_;  // in this round
  std::int32_t limit_ = 0;
};

}  // namespace espalier
