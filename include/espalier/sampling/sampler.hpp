// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/sampling/softmax.hpp"

namespace espalier {

//! How logits become the distribution that tokens are drawn from.
struct sampling_options {
  float temperature = 0.0F;  //!< 0 takes the most probable token
  std::int32_t top_k = 0;    //!< only the k most probable tokens; 0: all
  float top_p = 1.0F;        //!< only the fewest most probable tokens that together reach this probability
  float min_p = 0.0F;        //!< only tokens at least this fraction as probable as the most probable
};

//! Turns a row of logits into probabilities: temperature, then top-k, top-p, min-p, each renormalised. Ties at a cut go
//! to the lower id.
//!
//! Complexity  three passes over the vocabulary; with top-k or top-p also a selection among the tokens that can survive
//! Errors      option_error for options out of range; numeric_error as max_logit
class sampler {
 public:
  explicit sampler(sampling_options options = {}) : options_(options) {
    require_option("temperature", options.temperature, 0.0F, 100.0F);
    require_option("top_k", options.top_k, 0, 1 << 30);
    require_option("top_p", options.top_p, 1e-6F, 1.0F);
    require_option("min_p", options.min_p, 0.0F, 1.0F);
  }

  const sampling_options& options() const { return options_; }
  bool is_greedy() const { return options_.temperature == 0.0F; }

  //! Makes room for rows of this length, so that probabilities() does not allocate.
  void reserve(std::int32_t vocab) {
    if (truncates()) kept_.reserve(static_cast<std::size_t>(vocab));
  }

  //! Shapes      logits, out: [vocab]
  void probabilities(std::span<const float> logits, std::span<float> out, std::int32_t row) { fill(logits, out, row); }
  void probabilities(std::span<const double> logits, std::span<double> out, std::int32_t row) {
    fill(logits, out, row);
  }

 private:
  bool truncates() const { return options_.top_k > 0 || options_.top_p < 1.0F || options_.min_p > 0.0F; }

  template <class NumberT>
  void fill(std::span<const NumberT> logits, std::span<NumberT> out, std::int32_t row) {
    if (is_greedy()) {
      const token_id best = argmax(logits, row);
      std::fill(out.begin(), out.end(), NumberT{0});
      out[static_cast<std::size_t>(best)] = 1;
      return;
    }
    softmax(logits, options_.temperature, out, row);
    if (truncates()) truncate(out);
  }

  template <class NumberT>
  void truncate(std::span<NumberT> p) {
    kept_.clear();
    for (std::size_t t = 0; t < p.size(); ++t) {
      if (p[t] > 0) kept_.push_back(static_cast<token_id>(t));
    }
    const auto before = [&](token_id a, token_id b) {
      const NumberT pa = p[static_cast<std::size_t>(a)];
      const NumberT pb = p[static_cast<std::size_t>(b)];
      return pa > pb || (pa == pb && a < b);
    };
    if (options_.top_k > 0 && static_cast<std::size_t>(options_.top_k) < kept_.size()) {
      std::nth_element(kept_.begin(), kept_.begin() + options_.top_k, kept_.end(), before);
      kept_.resize(static_cast<std::size_t>(options_.top_k));
    }
    // min-p compares with the largest, so it may come first and leave top-p less to sort; not so the mass.
    const double mass = static_cast<double>(options_.top_p) * mass_kept<NumberT>(p);
    const NumberT least = static_cast<NumberT>(options_.min_p) * *std::max_element(p.begin(), p.end());
    std::erase_if(kept_, [&](token_id t) { return p[static_cast<std::size_t>(t)] < least; });
    if (options_.top_p < 1.0F) keep_top<NumberT>(mass, p, before);
    const double total = mass_kept<NumberT>(p);
    std::sort(kept_.begin(), kept_.end());
    std::size_t next = 0;
    for (std::size_t t = 0; t < p.size(); ++t) {
      const bool keep = next < kept_.size() && static_cast<std::size_t>(kept_[next]) == t;
      next += keep ? 1 : 0;
      p[t] = keep ? static_cast<NumberT>(static_cast<double>(p[t]) / total) : NumberT{0};
    }
  }

  template <class NumberT>
  double mass_kept(std::span<const NumberT> p) const {
    double mass = 0;
    for (const token_id t : kept_)
      mass += static_cast<double>(p[static_cast<std::size_t>(t)]);
    return mass;
  }

  // The fewest of the kept tokens that reach this mass.
  template <class NumberT, class BeforeT>
  void keep_top(double mass, std::span<const NumberT> p, const BeforeT& before) {
    std::sort(kept_.begin(), kept_.end(), before);
    double sum = 0;
    std::size_t n = 0;
    while (n < kept_.size() && sum < mass)
      sum += static_cast<double>(p[static_cast<std::size_t>(kept_[n++])]);
    kept_.resize(n);
  }

  sampling_options options_;
  std::vector<token_id> kept_;
};

}  // namespace espalier
