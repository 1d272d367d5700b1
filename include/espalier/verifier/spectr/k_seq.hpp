// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/core/wide_number.hpp"

//! The division factor of K-SEQ, for the verifier spectr and for its analysis.
namespace espalier::detail {

// The solution for k draws from q, each of which is accepted in turn with probability min(1, p / (rho q)).
struct k_seq {
  wide_number rho = 1;
  wide_number beta = 0;  // probability that one draw is accepted; known once solved
  // probability that one of the k draws is accepted, divided by beta; at most rho, up to the tolerance
  wide_number gamma = 1;
  std::int32_t passes = 0;  // passes over p and q that the solution took
};

// The probability that at least one of k independent events of probability b happens: 1 - (1 - b)^k, by the bits of k,
// and accurate for small b, too.
ESPALIER_HOST_DEVICE inline wide_number any_of(wide_number b, std::int32_t k) {
  if (b >= 1) return 1;
  wide_number any = 0;
  std::int32_t bit = 1;
  while (bit <= k / 2)
    bit *= 2;
  for (; bit > 0; bit /= 2) {
    any *= 2 - any;
    if ((k & bit) != 0) any += b * (1 - any);
  }
  return any;
}

// The most by which k draws together may be accepted beyond the target's share: a bound on f(rho) = 1 - (1 - beta)^k -
// rho beta, and on the error of the emitted distribution in total variation. For float rows it is some hundred times
// the rounding error of their sums.
template <class NumberT>
inline constexpr wide_number k_seq_tolerance = std::is_same_v<NumberT, float> || std::is_same_v<wide_number, float>
                                                   ? wide_number(4e-7)
                                                   : wide_number(1e-13);

// The sums of one pass: beta(rho) = settled / rho + open, exactly, until rho passes the next p(t) / q(t).
struct k_seq_sums {
  wide_number settled;  // sum of p over the tokens with p <= rho q
  wide_number open;     // sum of q over the other tokens
};

template <class TargetRowT, class DraftRowT, class NumberT>
ESPALIER_HOST_DEVICE k_seq_sums k_seq_pass(const TargetRowT& p, const DraftRowT& q, NumberT rho) {
  const auto settled = [&](std::size_t i) { return p[i] <= rho * q[i] ? p[i] : NumberT{0}; };
  const auto open = [&](std::size_t i) { return p[i] <= rho * q[i] ? NumberT{0} : q[i]; };
  const auto found = team_of(p).sums_of(p.size(), settled, open);
  return {found.of[0], found.of[1]};
}

// The search ends with a step that is no longer than this, relative to rho.
inline constexpr wide_number k_seq_precision = 4 * std::numeric_limits<wide_number>::epsilon();

// The next rho: the zero that f would have if its sums stayed the same beyond rho. It is found by Newton's steps, and
// by halving where they leave the bracket.
//
// Pre         f(rho) > 0
ESPALIER_HOST_DEVICE inline wide_number k_seq_step(wide_number rho, k_seq_sums sums, std::int32_t k) {
  const auto draws = static_cast<wide_number>(k);
  wide_number low = rho;
  wide_number high = draws;
  wide_number at = rho;
  for (std::int32_t steps = 0; steps < 100; ++steps) {
    const wide_number beta = sums.settled / at + sums.open;
    const wide_number f = any_of(beta, k) - at * beta;
    (f > 0 ? low : high) = at;
    const wide_number slope = -draws * (1 - any_of(beta, k - 1)) * sums.settled / (at * at) - sums.open;
    wide_number next = at - f / slope;
    if (!(low < next && next < high)) next = low + (high - low) / 2;
    if (!(low < next && next < high)) return high;
    const wide_number step = next < at ? at - next : next - at;
    if (step <= k_seq_precision * at) return next;
    at = next;
  }
  return high;
}

// The smallest rho in [1, k] with f(rho) <= tolerance. rho beta(rho) is concave, so each step, made along its tangent,
// ends at the solution or below it, and the steps converge as Newton's do: 4 to 6 passes over a row of any length, 1 if
// p and q are equal or disjoint.
template <class TargetRowT, class DraftRowT>
ESPALIER_HOST_DEVICE k_seq solve_k_seq(const TargetRowT& p, const DraftRowT& q, std::int32_t k) {
  using number = term_type<TargetRowT>;
  constexpr std::int32_t max_passes = 64;
  const auto draws = static_cast<wide_number>(k);
  k_seq found;
  for (;;) {
    const k_seq_sums sums = k_seq_pass(p, q, static_cast<number>(found.rho));
    ++found.passes;
    found.beta = sums.settled / found.rho + sums.open;
    if (found.beta > 1) found.beta = 1;
    const wide_number any = any_of(found.beta, k);
    found.gamma = found.beta > 0 ? any / found.beta : draws;
    if (any - found.rho * found.beta <= k_seq_tolerance<number> || found.rho >= draws) return found;
    found.rho = team_of(p).once([&] {
      return static_cast<wide_number>(
          static_cast<number>(found.passes < max_passes ? k_seq_step(found.rho, sums, k) : draws));
    });
  }
}

// The weights from which the target's own token is drawn once all k draws have failed: p - gamma min(p / rho, q), never
// stored.
template <class NumberT, class TargetRowT = row_view<NumberT>, class DraftRowT = TargetRowT>
class k_seq_residual {
 public:
  ESPALIER_HOST_DEVICE k_seq_residual(TargetRowT p, DraftRowT q, const k_seq& by)
      : p_(p),
        q_(q),
        settled_(by.rho > by.gamma ? static_cast<NumberT>((by.rho - by.gamma) / by.rho) : NumberT{0}),
        share_(static_cast<NumberT>(by.gamma)) {}

  ESPALIER_HOST_DEVICE std::size_t size() const { return p_.size(); }
  ESPALIER_HOST_DEVICE NumberT operator[](std::size_t i) const {
    const NumberT settled = settled_ * p_[i];
    const NumberT open = p_[i] - share_ * q_[i];
    return settled > open ? settled : open;
  }
  ESPALIER_HOST_DEVICE auto team() const { return p_.team(); }

 private:
  TargetRowT p_;
  DraftRowT q_;
  NumberT settled_;  // factor of p where p <= rho q
  NumberT share_;
};

template <class TargetRowT, class DraftRowT>
k_seq_residual(TargetRowT, DraftRowT, k_seq) -> k_seq_residual<term_type<TargetRowT>, TargetRowT, DraftRowT>;

}  // namespace espalier::detail
