// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "espalier/analysis/acceptance_rate.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

namespace detail {

// Checks that q could have given the draws of a list.
//
// Errors      input_error if p and q are empty or differ in length, or a token has no probability under q
template <class NumberT>
void require_list(std::span<const NumberT> p, std::span<const NumberT> q, std::span<const token_id> list) {
  require_same_vocabulary(p, q);
  for (const token_id x : list) {
    if (x < 0 || static_cast<std::size_t>(x) >= q.size() || !(q[static_cast<std::size_t>(x)] > 0))
      raise<input_error>("token ", x, " cannot have been drawn: the draft's row gives it no probability.");
  }
}

// Returns min(1, p / q); 0 for p = 0.
template <class PT, class QT>
double acceptance(PT p, QT q) {
  return p > 0 ? (std::min)(1.0, static_cast<double>(p) / static_cast<double>(q)) : 0.0;
}

}  // namespace detail

//! Returns, for each draw in a list, the probability that the verifier emits the draw's token at the node that the
//! draws belong to. Equal tokens get equal numbers. Over the different tokens the sum is 1 minus the probability that
//! the emitted token is not in the list. There is an overload for each verifier for which acceptance_rate has one.
//!
//! Shapes      p the target's row, q the draft's: [vocab]; list, result: [k], in the order of the draws
//! Complexity  passes over p and q as in acceptance_rate; specinfer: and O(k 2^k)
//! Law         equals the probabilities by enumeration of the verifier's choices
//! Errors      input_error if p and q are empty or differ in length, if q could not give a token of the list, and, for
//!             specinfer, for more than 16 draws
//! Source      Delayed tree expansion, Definition 5.3 and Algorithms 11 to 15. khisti chooses one of the draws and
//!             tests it; Algorithm 15 leaves out the probability that the residual then gives one of the other draws,
//!             which counts here (docs/algorithms/analysis.md)
template <class NumberT>
std::vector<double> branching_probabilities(const target_only&, std::span<const NumberT> p, std::span<const NumberT> q,
                                            std::span<const token_id> list) {
  detail::require_list(p, q, list);
  std::vector<double> result;
  for (const token_id x : list)
    result.push_back(static_cast<double>(p[static_cast<std::size_t>(x)]));
  return result;
}

template <class NumberT>
std::vector<double> branching_probabilities(const naive_tree&, std::span<const NumberT> p, std::span<const NumberT> q,
                                            std::span<const token_id> list) {
  detail::require_list(p, q, list);
  std::vector<double> result;
  if (list.empty()) return result;
  const auto first = static_cast<std::size_t>(list[0]);
  const double accepted = detail::acceptance(p[first], q[first]);
  residual<NumberT> rest(p, q);
  rest.take(1);
  for (const token_id x : list)
    result.push_back((x == list[0] ? accepted : 0.0) + (1 - accepted) * rest.at(static_cast<std::size_t>(x)));
  return result;
}

template <class NumberT>
std::vector<double> branching_probabilities(const naive&, std::span<const NumberT> p, std::span<const NumberT> q,
                                            std::span<const token_id> list) {
  return branching_probabilities(naive_tree(), p, q, list);
}

template <class NumberT>
std::vector<double> branching_probabilities(const spectr&, std::span<const NumberT> p, std::span<const NumberT> q,
                                            std::span<const token_id> list) {
  detail::require_list(p, q, list);
  const auto k = static_cast<std::int32_t>(list.size());
  const detail::k_seq by = k > 1 ? detail::solve_k_seq(p, q, k) : detail::k_seq{};
  const detail::k_seq_residual<NumberT> rest(p, q, by);
  const double mass = detail::mass(rest);
  std::vector<double> result(list.size(), 0.0);
  double rejected = 1;
  for (const token_id x : list) {
    const auto t = static_cast<std::size_t>(x);
    const double accepted = detail::acceptance(p[t], by.rho * static_cast<double>(q[t]));
    for (std::size_t i = 0; i < list.size(); ++i)
      result[i] += list[i] == x ? rejected * accepted : 0.0;
    rejected *= 1 - accepted;
  }
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto t = static_cast<std::size_t>(list[i]);
    result[i] +=
        rejected * static_cast<double>(mass > 0 ? static_cast<double>(rest[t]) / mass : static_cast<double>(p[t]));
  }
  return result;
}

template <class NumberT>
std::vector<double> branching_probabilities(const specinfer&, std::span<const NumberT> p, std::span<const NumberT> q,
                                            std::span<const token_id> list) {
  detail::require_list(p, q, list);
  constexpr std::size_t most = 16;
  const std::size_t k = list.size();
  if (k > most)
    raise<input_error>("a node has ", k, " draws; SpecInfer's branching is worked out for at most ", most, ".");
  // accepted[i * k + j]: probability to accept draw j after i rejections.
  std::vector<double> accepted;
  residual<NumberT> rest(p, q);
  for (std::size_t i = 0; i < k; ++i) {
    for (const token_id x : list) {
      const auto t = static_cast<std::size_t>(x);
      accepted.push_back(detail::acceptance(rest.at(t), q[t]));
    }
    rest.take(1);
  }
  // The probability that exactly the draws of a set have been rejected; a set comes after its subsets.
  std::vector<double> reached(std::size_t{1} << k, 0.0);
  std::vector<double> emitted(k, 0.0);
  reached[0] = 1;
  for (std::size_t set = 0; set + 1 < reached.size(); ++set) {
    const auto i = static_cast<std::size_t>(std::popcount(set));
    const double each = reached[set] / static_cast<double>(k - i);
    for (std::size_t j = 0; j < k; ++j) {
      if ((set >> j & 1U) != 0) continue;
      emitted[j] += each * accepted[i * k + j];
      reached[set | std::size_t{1} << j] += each * (1 - accepted[i * k + j]);
    }
  }
  std::vector<double> result;
  for (const token_id x : list) {
    double sum = reached.back() * rest.at(static_cast<std::size_t>(x));
    for (std::size_t j = 0; j < k; ++j)
      sum += list[j] == x ? emitted[j] : 0.0;
    result.push_back(sum);
  }
  return result;
}

template <class NumberT>
std::vector<double> branching_probabilities(const khisti& verifier, std::span<const NumberT> p,
                                            std::span<const NumberT> q, std::span<const token_id> list) {
  detail::require_list(p, q, list);
  const std::size_t k = list.size();
  std::vector<double> result(k, 0.0);
  if (k == 0) return result;
  // wins[i]: the probability that draw i is the one chosen so far; among equal tokens the first draw stands for all.
  std::vector<double> wins(k, 0.0);
  wins[0] = 1;
  const auto stage = std::make_unique<detail::pair_select<NumberT>>();
  std::span<const NumberT> of_winner = q;
  for (std::size_t next = 1; next < k; ++next) {
    of_winner = stage->solve(p, of_winner, q, verifier.options().window);
    const auto same = static_cast<std::size_t>(std::find(list.begin(), list.end(), list[next]) - list.begin());
    for (std::size_t i = 0; i < next; ++i) {
      if (i == same || wins[i] == 0) continue;
      const auto shares = stage->shares(static_cast<std::size_t>(list[i]), static_cast<std::size_t>(list[next]));
      const double kept = shares.x > 0 ? wins[i] * (shares.x / (shares.x + shares.y)) : 0.0;
      wins[same] += wins[i] - kept;
      wins[i] = kept;
    }
  }
  residual<NumberT> rest(p, of_winner);
  rest.take(1);
  double rejected = 0;
  for (std::size_t i = 0; i < k; ++i) {
    if (wins[i] == 0) continue;
    const auto t = static_cast<std::size_t>(list[i]);
    const double accepted = wins[i] * detail::acceptance(p[t], of_winner[t]);
    for (std::size_t j = 0; j < k; ++j)
      result[j] += list[j] == list[i] ? accepted : 0.0;
    rejected += wins[i] - accepted;
  }
  for (std::size_t j = 0; j < k; ++j)
    result[j] += rejected * rest.at(static_cast<std::size_t>(list[j]));
  return result;
}

}  // namespace espalier
