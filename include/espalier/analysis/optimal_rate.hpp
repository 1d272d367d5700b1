// SPDX-License-Identifier: BSL-1.0
// Tested by tests/analysis/acceptance_rate.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "espalier/analysis/acceptance_rate.hpp"

namespace espalier {

//! The highest acceptance rate that a lossless verifier of k independent draws can have at a node.
//!
//! Shapes      p the target's row, q the draft's: [vocab]
//! Complexity  O(vocab log vocab)
//! Law         the minimum over token sets S of 1 + p(S) - q(S)^k; it lies at the first tokens in the order of falling
//!             q / p
//! Errors      input_error if p and q are empty or differ in length, or if k is below 1
//! Source      Hu et al., Towards optimal multi-draft speculative decoding (arXiv 2502.18779)
template <class NumberT>
double optimal_acceptance_rate(std::span<const NumberT> p, std::span<const NumberT> q, std::int32_t k) {
  detail::require_draws(p, q, k);
  struct token {
    double ratio, p, q;
  };
  std::vector<token> tokens;
  for (std::size_t t = 0; t < p.size(); ++t) {
    const auto a = static_cast<double>(p[t]);
    const auto b = static_cast<double>(q[t]);
    if (b > 0) tokens.push_back({a > 0 ? b / a : (std::numeric_limits<double>::infinity)(), a, b});
  }
  std::sort(tokens.begin(), tokens.end(), [](const token& x, const token& y) { return x.ratio > y.ratio; });
  double best = 1, target = 0, draft = 0;
  for (const token& t : tokens) {
    target += t.p;
    draft += t.q;
    best = (std::min)(best, 1 + target - detail::power((std::min)(draft, 1.0), k));
  }
  return best;
}

}  // namespace espalier
