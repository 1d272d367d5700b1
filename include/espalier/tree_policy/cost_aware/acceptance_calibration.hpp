// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>

namespace espalier {

//! Predicts the probability that a drafted token is accepted, once its parent is, from a probability that the draft
//! gives. The log-odds of acceptance are a straight line over the log-odds of that probability. The line begins with a
//! prior and follows recently accepted tokens.
//!
//! Complexity  O(1)
//! Law         the prediction never falls as the draft's probability rises. Nothing but observe(), reset() and a
//!             serialize() that loads changes it
//! Source      Platt's scaling, fitted with one step of Newton's method for each observation. Observations lose weight
//!             with time, the prior does not. The farther the bias is from the prior's, the harder the prior pulls, up
//!             to a distance of half a unit of log-odds (Huber)
class acceptance_calibration {
 public:
  //! A line: log-odds of acceptance = bias + slope * log-odds of the draft's probability.
  struct line {
    double bias;
    double slope;
  };

  //! Makes a calibration that begins with this line. `weight` is the weight of the prior's bias, in units of
  //! information; an observation has at most 0.25 of these.
  explicit acceptance_calibration(line prior, double weight = 0.5) : prior_(prior), prior_weight_(weight) { reset(); }

  //! Forgets all observations.
  void reset() {
    now_ = prior_;
    bias_weight_ = prior_weight_;
    cross_weight_ = 0;
    slope_weight_ = prior_slope_weight;
  }

  template <class ArchiveT>
  void serialize(ArchiveT& archive) {
    archive(now_.bias, now_.slope, bias_weight_, cross_weight_, slope_weight_);
  }

  //! The log-odds of a probability, which is kept away from 0 and 1.
  static double log_odds(double probability) {
    const double p = std::clamp(probability, 1e-4, 1 - 1e-4);
    return std::log(p / (1 - p));
  }

  //! The probability of acceptance, above 0 and below 1.
  double probability(double draft_probability) const { return at(log_odds(draft_probability)); }

  //! The probability of acceptance, from the log-odds of the draft's probability.
  double at(double draft_log_odds) const { return 1 / (1 + std::exp(-(now_.bias + now_.slope * draft_log_odds))); }

  //! Learns whether a token to which the draft gave this probability was accepted. The token's parent was accepted.
  void observe(double draft_probability, bool accepted) {
    const double x = log_odds(draft_probability), a = at(x);
    const double information = (std::max)(a * (1 - a), 0.02), error = (accepted ? 1 : 0) - a;
    bias_weight_ = fade(bias_weight_, prior_weight_) + information;
    cross_weight_ = fade(cross_weight_, 0) + information * x;
    slope_weight_ = fade(slope_weight_, prior_slope_weight) + information * x * x;
    const double pull = std::clamp(prior_.bias - now_.bias, -farthest, farthest);
    const double along_bias = error + (1 - kept) * prior_weight_ * pull;
    const double along_slope = error * x + (1 - kept) * prior_slope_weight * (prior_.slope - now_.slope);
    const double determinant = bias_weight_ * slope_weight_ - cross_weight_ * cross_weight_;
    const double bias_step = (slope_weight_ * along_bias - cross_weight_ * along_slope) / determinant;
    const double slope_step = (bias_weight_ * along_slope - cross_weight_ * along_bias) / determinant;
    now_.bias = std::clamp(now_.bias + bias_step, -8.0, 8.0);
    now_.slope = std::clamp(now_.slope + slope_step, 0.0, 3.0);
  }

 private:
  static constexpr double kept = 0.98;  // share of the weight of earlier observations that is kept at each observation
  static constexpr double prior_slope_weight = 30;
  static constexpr double farthest = 0.5;  // distance in log-odds from which on the prior pulls no harder

  static double fade(double weight, double prior) { return kept * weight + (1 - kept) * prior; }

  line prior_;
  double prior_weight_;
  line now_{};
  double bias_weight_ = 0, cross_weight_ = 0, slope_weight_ = 0;  // second derivatives of the loss
};

}  // namespace espalier
