// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/wide_number.hpp"
#include "espalier/sampling/exponential.hpp"
#include "espalier/tree_policy/growth/layer.hpp"

namespace espalier {

//! The number that dynatree's history keeps of a round as its acceptance.
enum class acceptance_statistic { depth, drafted };

template <>
inline constexpr auto known_values<acceptance_statistic> =
    std::array{known_value<acceptance_statistic>{acceptance_statistic::depth, "depth",
                                                 "committed tokens over D_0 + 2, 1 at most (the public code)"},
               known_value<acceptance_statistic>{acceptance_statistic::drafted, "drafted",
                                                 "accepted over drafted tokens (the second paper's text)"}};

//! Options of dynatree. Defaults are those of DynaTree's second paper (appendix A) and, where it gives none, of its
//! public code. Depths are the paper's: the first drafted token has depth 0.
struct dynatree_options {
  static constexpr std::int32_t max_window = 64;

  std::int32_t budget = 256;        //!< N_max, drafted tokens of a round at most
  std::int32_t base_depth = 5;      //!< D_0, depth down to which likely and unlikely paths grow alike
  std::int32_t max_depth = 8;       //!< D_max, depth of the deepest node
  std::int32_t min_breadth = 1;     //!< B_min, children of a confident node
  std::int32_t mid_breadth = 2;     //!< B_mid, children of a node that is neither confident nor unsure
  std::int32_t max_breadth = 3;     //!< B_max, children of an unsure node
  double high_confidence = 0.9;     //!< tau_h, confidence from which on a node counts as confident
  double low_confidence = 0.4;      //!< tau_l, confidence below which a node counts as unsure
  double prune_probability = 0.05;  //!< tau, path probability below which a node stays a leaf
  //! rho_stop, path probability below which a node stays a leaf, too (the paper's early stopping)
  double stop_probability = 0.1;
  double deep_probability = 0.5;  //!< rho_deep, path probability needed beyond the base depth
  bool history = true;            //!< adapt D_0, tau_h and rho_deep to recent acceptance
  acceptance_statistic history_statistic = acceptance_statistic::depth;  //!< a_r, the acceptance of a round
  std::int32_t history_window = 10;  //!< W, rounds over which acceptance is averaged
  double low_acceptance = 0.6;       //!< mean acceptance below which trees become shallower
  double high_acceptance = 0.8;      //!< mean acceptance above which trees become deeper
  double history_step = 0.05;        //!< change of tau_h and rho_deep in a round

  //! The options of the first paper, which has one breadth, one depth and one threshold, in its best setting (D = 8,
  //! B = 3, tau = 0.03).
  static constexpr dynatree_options first_paper() {
    return {.budget = 256,
            .base_depth = 8,
            .max_depth = 8,
            .min_breadth = 3,
            .mid_breadth = 3,
            .max_breadth = 3,
            .high_confidence = 1.0,
            .low_confidence = 0.0,
            .prune_probability = 0.03,
            .stop_probability = 0.0,
            .deep_probability = 0.0,
            .history = false};
  }

  static constexpr void describe(auto see) {
    using self = dynatree_options;
    see(option{"budget", &self::budget, "drafted tokens a round at most", 2, 65536});
    see(option{"max_depth", &self::max_depth, "depth of the deepest node; the first drafted has 0", 1, 64});
    see(option{"base_depth", &self::base_depth, "depth down to which all paths grow alike", 1, &self::max_depth});
    see(option{"max_breadth", &self::max_breadth, "children of an unsure node", 1, layer::max_breadth});
    see(option{"mid_breadth", &self::mid_breadth, "children of a node in between", 1, &self::max_breadth});
    see(option{"min_breadth", &self::min_breadth, "children of a confident node", 1, &self::mid_breadth});
    see(option{"high_confidence", &self::high_confidence, "from here on a node is confident", 0, 1});
    see(option{"low_confidence", &self::low_confidence, "below this a node is unsure", 0, &self::high_confidence});
    see(option{"deep_probability", &self::deep_probability, "less likely paths end at the base depth", 0, 1});
    see(option{"prune_probability", &self::prune_probability, "less likely paths end", 0, 1});
    see(option{"stop_probability", &self::stop_probability, "less likely paths end, too", 0, &self::deep_probability});
    see(option{"history", &self::history, "adapt to what was accepted lately"});
    see(option{"history_statistic", &self::history_statistic, "acceptance of a round, for history"});
    see(option{"history_window", &self::history_window, "rounds that history averages", 1, max_window});
    see(option{"high_acceptance", &self::high_acceptance, "above this trees become deeper", 0, 1});
    see(option{"low_acceptance", &self::low_acceptance, "below this trees become shallower", 0,
               &self::high_acceptance});
    see(option{"history_step", &self::history_step, "change of history's two probabilities a round", 0, 1});
  }
};

//! The rule by which dynatree expands nodes and adapts to recent acceptance. The class is the same on host and device.
class dynatree_rule {
 public:
  dynatree_rule() = default;
  ESPALIER_HOST_DEVICE explicit dynatree_rule(const dynatree_options& options) : options_(options), now_(options) {}

  //! Number of drafted tokens at most.
  ESPALIER_HOST_DEVICE std::int32_t budget() const { return options_.budget; }

  //! True if a node of this depth in the tree (the root's is 0) gets children.
  ESPALIER_HOST_DEVICE bool expands(std::int32_t depth, float path_log_prob) const {
    const wide_number probability = detail::exp_of_minus(-static_cast<wide_number>(path_log_prob));
    const auto reaches = [=](double least) { return probability >= static_cast<wide_number>(least); };
    return reaches(now_.prune_probability) && depth - 1 < now_.max_depth && reaches(now_.stop_probability) &&
           (depth - 1 < now_.base_depth || reaches(now_.deep_probability));
  }

  //! Number of children of a node whose row has `confidence` as its largest probability.
  ESPALIER_HOST_DEVICE std::int32_t breadth(double confidence) const {
    if (confidence >= now_.high_confidence) return now_.min_breadth;
    return confidence < now_.low_confidence ? now_.max_breadth : now_.mid_breadth;
  }

  //! Learns that `depth` of `drafted` tokens were accepted in a round. A round without drafted tokens teaches nothing
  //! about their share.
  ESPALIER_HOST_DEVICE void observe(std::int32_t depth, std::int32_t drafted) {
    if (!options_.history) return;
    if (options_.history_statistic == acceptance_statistic::drafted) {
      if (drafted > 0) observe_acceptance(static_cast<double>(depth) / drafted);
      return;
    }
    const double part = (depth + 1.0) / (now_.base_depth + 2);
    observe_acceptance(part < 1 ? part : 1.0);
  }

  //! Adapts to the acceptance of one round, from 0 to 1. The mean is taken over the last history_window rounds, once
  //! there are half as many: above high_acceptance the rule drafts deeper and narrower, below low_acceptance shallower
  //! and broader. The three options that change (see dynatree_options::history) stay within the published bounds, or,
  //! if an option was set outside, between the bound and its first value.
  ESPALIER_HOST_DEVICE void observe_acceptance(double acceptance) {
    const std::int32_t window = options_.history_window;
    acceptance_[n_observed_ % window] = acceptance;
    ++n_observed_;
    if (n_observed_ < (window + 1) / 2) return;
    const std::int32_t n = n_observed_ < window ? n_observed_ : window;
    const double step = options_.history_step;
    double mean = 0;
    for (std::int32_t i = 0; i < n; ++i)
      mean += acceptance_[i] / n;
    if (mean > options_.high_acceptance) {
      now_.base_depth = smaller(now_.base_depth + 1, larger(now_.max_depth - 1, options_.base_depth));
      now_.high_confidence = larger(now_.high_confidence - step, smaller(0.5, options_.high_confidence));
      now_.deep_probability = larger(now_.deep_probability - step, smaller(0.3, options_.deep_probability));
    } else if (mean < options_.low_acceptance) {
      now_.base_depth = larger(now_.base_depth - 1, smaller(std::int32_t{2}, options_.base_depth));
      now_.high_confidence = smaller(now_.high_confidence + step, larger(0.95, options_.high_confidence));
      now_.deep_probability = smaller(now_.deep_probability + step, larger(0.8, options_.deep_probability));
    }
  }

  //! Begins a new text: forgets the history.
  ESPALIER_HOST_DEVICE void reset() { *this = dynatree_rule(options_); }

  //! Saves or loads the values that history has changed.
  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    archive(now_.base_depth, now_.high_confidence, now_.deep_probability, n_observed_);
    archive(std::span(acceptance_).first(static_cast<std::size_t>(options_.history_window)));
    archive.require(n_observed_ >= 0 && now_.base_depth >= 1 && now_.base_depth <= 64);
  }

  //! The options as history has adapted them.
  ESPALIER_HOST_DEVICE const dynatree_options& adapted() const { return now_; }

 private:
  template <class NumberT>
  ESPALIER_HOST_DEVICE static NumberT smaller(NumberT a, NumberT b) {
    return b < a ? b : a;
  }
  template <class NumberT>
  ESPALIER_HOST_DEVICE static NumberT larger(NumberT a, NumberT b) {
    return a < b ? b : a;
  }

  dynatree_options options_;
  dynatree_options now_;
  double acceptance_[dynatree_options::max_window] = {};
  std::int32_t n_observed_ = 0;
};

}  // namespace espalier
