// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "espalier/core/weights.hpp"

//! The division factor of K-SEQ, for the verifier spectr and for its analysis.
namespace espalier::detail {

// Each of k draws from q is accepted with min(1, p / (rho q)), in turn.
struct k_seq {
  double rho = 1;
  double beta = 0;          // a draw is accepted with this probability; known once solved
  double gamma = 1;         // one of the k is, over beta; at most rho, but for the tolerance
  std::int32_t passes = 0;  // over p and q, that it took to solve
};

// The probability that one of k independent events of probability b happens.
inline double any_of(double b, std::int32_t k) {
  return b >= 1 ? 1 : -std::expm1(k * std::log1p(-b));
}

// How much more than the target's share one of k draws may be accepted with: f(rho) = 1 - (1 - beta)^k - rho beta, the bound on
// the error of the law in total variation. For floats it is some hundred times what their sums are off by.
template <class NumberT>
inline constexpr double k_seq_tolerance = std::is_same_v<NumberT, float> ? 4e-7 : 1e-13;

// The sums that one pass gives: beta(rho) = settled / rho + open, exactly, until rho passes the next p(t) / q(t).
struct k_seq_sums {
  double settled = 0;  // p where p <= rho q
  double open = 0;     // q elsewhere
};

template <class NumberT>
k_seq_sums k_seq_pass(std::span<const NumberT> p, std::span<const NumberT> q, NumberT rho) {
  constexpr std::size_t lanes = mass_lanes / 2;
  double settled_sum[lanes] = {};
  double open_sum[lanes] = {};
  for (std::size_t begin = 0; begin < p.size(); begin += mass_block) {
    const std::size_t end = (std::min)(begin + mass_block, p.size());
    NumberT settled[lanes] = {};
    NumberT open[lanes] = {};
    const auto add = [&](NumberT a, NumberT b, std::size_t l) {
      const bool is_settled = a <= rho * b;
      const NumberT s = is_settled ? a : NumberT{0};
      const NumberT o = is_settled ? NumberT{0} : b;
      settled[l] += s;
      open[l] += o;
    };
    std::size_t i = begin;
    for (; i + lanes <= end; i += lanes) {
      for (std::size_t l = 0; l < lanes; ++l)
        add(p[i + l], q[i + l], l);
    }
    for (std::size_t l = 0; i < end; ++i, ++l)
      add(p[i], q[i], l);
    for (std::size_t l = 0; l < lanes; ++l) {
      settled_sum[l] += static_cast<double>(settled[l]);
      open_sum[l] += static_cast<double>(open[l]);
    }
  }
  k_seq_sums sums;
  for (std::size_t l = 0; l < lanes; ++l)
    sums.settled += settled_sum[l], sums.open += open_sum[l];
  return sums;
}

// Where f would be 0 if it went on beyond rho as it begins, f(rho) > 0.
inline double k_seq_step(double rho, k_seq_sums sums, std::int32_t k) {
  double low = rho;
  double high = k;
  for (;;) {
    const double middle = low + (high - low) / 2;
    if (!(low < middle && middle < high)) return high;
    const double beta = sums.settled / middle + sums.open;
    (any_of(beta, k) > middle * beta ? low : high) = middle;
  }
}

// The smallest rho in [1, k] with f(rho) <= tolerance. rho beta(rho) is concave, so that each step, made along its tangent,
// ends below the solution or at it, and the steps converge as Newton's do: 4 to 6 passes over a row of any length, 1 if p and
// q are equal or disjoint.
template <class NumberT>
k_seq solve_k_seq(std::span<const NumberT> p, std::span<const NumberT> q, std::int32_t k) {
  constexpr std::int32_t max_passes = 64;
  k_seq found;
  for (;;) {
    const k_seq_sums sums = k_seq_pass(p, q, static_cast<NumberT>(found.rho));
    ++found.passes;
    found.beta = (std::min)(1.0, sums.settled / found.rho + sums.open);
    const double any = any_of(found.beta, k);
    found.gamma = found.beta > 0 ? any / found.beta : k;
    if (any - found.rho * found.beta <= k_seq_tolerance<NumberT> || found.rho >= k) return found;
    const double next = found.passes < max_passes ? k_seq_step(found.rho, sums, k) : k;
    found.rho = static_cast<double>(static_cast<NumberT>(next));
  }
}

// What the target still has to give once all k draws have failed, in proportion: p - gamma min(p / rho, q), never stored.
template <class NumberT>
class k_seq_residual {
 public:
  k_seq_residual(std::span<const NumberT> p, std::span<const NumberT> q, const k_seq& by)
      : p_(p),
        q_(q),
        settled_(static_cast<NumberT>((std::max)(0.0, (by.rho - by.gamma) / by.rho))),
        share_(static_cast<NumberT>(by.gamma)) {}

  std::size_t size() const { return p_.size(); }
  NumberT operator[](std::size_t i) const {
    const NumberT settled = settled_ * p_[i];
    const NumberT open = p_[i] - share_ * q_[i];
    return settled > open ? settled : open;
  }

 private:
  std::span<const NumberT> p_;
  std::span<const NumberT> q_;
  NumberT settled_;  // of p where p <= rho q
  NumberT share_;
};

}  // namespace espalier::detail
