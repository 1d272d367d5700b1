// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/verifier/khisti.hpp"
#include "espalier/verifier/khisti/pair_select.hpp"
#include "espalier/verifier/naive.hpp"
#include "espalier/verifier/naive_tree.hpp"
#include "espalier/verifier/specinfer.hpp"
#include "espalier/verifier/spectr.hpp"
#include "espalier/verifier/spectr/k_seq.hpp"
#include "espalier/verifier/target_only.hpp"
#include "espalier/verifier/walk/residual.hpp"

namespace espalier {

namespace detail {

// Checks that the rows of target and draft have the same length, and are not empty.
//
// Errors      input_error if they are not
template <class NumberT>
void require_same_vocabulary(std::span<const NumberT> p, std::span<const NumberT> q) {
  if (p.size() != q.size() || p.empty()) {
    raise<input_error>("the target's row has ", p.size(), " tokens and the draft's ", q.size(),
                       "; they must share one vocabulary.");
  }
}

// Checks two rows, and the number of independent draws.
//
// Errors      input_error if p and q are empty or differ in length, or if k is below 1
template <class NumberT>
void require_draws(std::span<const NumberT> p, std::span<const NumberT> q, std::int32_t k) {
  require_same_vocabulary(p, q);
  if (k < 1) raise<input_error>("there are ", k, " draws, but an acceptance rate takes at least 1.");
}

inline double power(double x, std::int32_t n) {
  double y = 1;
  for (; n > 0; n /= 2, x *= x)
    y *= n % 2 == 1 ? x : 1.0;
  return y;
}

}  // namespace detail

//! The probability that the token that a verifier emits at a node is one of the node's k independent draws. The higher
//! it is, the longer the verifier stays on the tree. There is an overload for target_only, naive_tree, naive, spectr,
//! specinfer and khisti: the verifiers that solve an optimal transport problem at each node.
//!
//! Shapes      p the target's row, q the draft's: [vocab]
//! Complexity  one pass over p and q; spectr: as many passes as solve_k_seq makes; specinfer: k passes; khisti: k - 1
//!             stages of pair_select, and one pass
//! Law         equals the probability by enumeration of all draws; khisti: a lower bound, exact for one draw and, if
//!             the window holds the vocabulary, for two
//! Errors      input_error if p and q are empty or differ in length, or if k is below 1
//! Source      Delayed tree expansion, Definition 5.1 and Algorithms 6 to 10
template <class NumberT>
double acceptance_rate(const target_only&, std::span<const NumberT> p, std::span<const NumberT> q, std::int32_t k) {
  detail::require_draws(p, q, k);
  return detail::sum_of(p.size(), [&](std::size_t t) {
    return static_cast<double>(p[t]) * (1 - detail::power(1 - static_cast<double>(q[t]), k));
  });
}

template <class NumberT>
double acceptance_rate(const naive_tree&, std::span<const NumberT> p, std::span<const NumberT> q, std::int32_t k) {
  detail::require_draws(p, q, k);
  return detail::sum_of(p.size(), [&](std::size_t t) {
    const auto a = static_cast<double>(p[t]);
    const auto b = static_cast<double>(q[t]);
    return (std::min)(a, b) + (std::max)(a - b, 0.0) * (1 - detail::power(1 - b, k - 1));
  });
}

template <class NumberT>
double acceptance_rate(const naive&, std::span<const NumberT> p, std::span<const NumberT> q, std::int32_t k) {
  return acceptance_rate(naive_tree(), p, q, k);
}

// Algorithm 8 adds the probability that the residual gives another draw. That is 0 here: with the factor of solve_k_seq
// the residual gives no token that can be a rejected draw.
template <class NumberT>
double acceptance_rate(const spectr&, std::span<const NumberT> p, std::span<const NumberT> q, std::int32_t k) {
  detail::require_draws(p, q, k);
  return detail::any_of(detail::solve_k_seq(p, q, k).beta, k);
}

// The last term of Algorithm 9 is left out. It is 0, since the residual gives no token that can be a rejected draw.
template <class NumberT>
double acceptance_rate(const specinfer&, std::span<const NumberT> p, std::span<const NumberT> q, std::int32_t k) {
  detail::require_draws(p, q, k);
  residual<NumberT> rest(p, q);
  double rejected = 1;
  for (std::int32_t i = 0; i < k && rejected > 0; ++i)
    rejected *= rest.take(1);
  return 1 - rejected;
}

template <class NumberT>
double acceptance_rate(const khisti& verifier, std::span<const NumberT> p, std::span<const NumberT> q, std::int32_t k) {
  detail::require_draws(p, q, k);
  const auto stage = std::make_unique<detail::pair_select<NumberT>>();
  std::span<const NumberT> of_winner = q;
  for (std::int32_t i = 1; i < k; ++i)
    of_winner = stage->solve(p, of_winner, q, verifier.options().window);
  return detail::sum_of(p.size(), [&](std::size_t t) {
    return (std::min)(static_cast<double>(p[t]), static_cast<double>(of_winner[t]));
  });
}

//! The highest acceptance rate that a lossless verifier of k independent draws can have at a node.
//!
//! Shapes      p the target's row, q the draft's: [vocab]
//! Complexity  O(vocab log vocab)
//! Law         equals the minimum over token sets S of 1 + p(S) - q(S)^k; a set with this minimum consists of the first
//!             tokens in the order of falling q / p
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
