// SPDX-License-Identifier: BSL-1.0
// Tested by tests/verifier/vectors.cpp
#pragma once

#include <cstddef>
#include <limits>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/weights.hpp"
#include "espalier/core/wide_number.hpp"

namespace espalier {

namespace detail {

template <class NumberT>
inline constexpr NumberT largest_number = (std::numeric_limits<NumberT>::max)();

// The state of a residual: everything except its rows.
struct residual_state {
  wide_number share = 0;
  wide_number mass = 1;
};

template <class NumberT>
ESPALIER_HOST_DEVICE NumberT rest_of(NumberT p, NumberT share, NumberT q) {
  const NumberT d = p - share * q;
  return d > 0 ? d : NumberT{0};
}

// The new `share` after times * q is subtracted from R. It is kept finite, so that 0 * share is 0 for tokens of draft
// probability 0.
template <class NumberT>
ESPALIER_HOST_DEVICE NumberT share_after(const residual_state& now, wide_number times) {
  constexpr wide_number most = [] {
    if constexpr (sizeof(NumberT) < sizeof(wide_number))
      return static_cast<wide_number>(largest_number<NumberT>);
    else
      return largest_number<wide_number>;
  }();
  const wide_number share = now.share + times * now.mass;
  return static_cast<NumberT>(share < most ? share : most);
}

}  // namespace detail

//! The part of the target that is left after draws from q were rejected: R = norm((p - share * q)+), never stored.
//!
//! A verifier begins with R = p and subtracts the draft again and again: R := norm((R - times * q)+). Since all rows
//! are non-negative, R keeps the form norm((p - share * q)+): only `share` and the mass change.
//!
//! Shapes      p, q: [vocab]
//! Law         a token rejected once, with R(x) < times * q(x), has weight 0 from then on
//! Source      Delayed tree expansion, the residual of Algorithms 2, 4 and 5; the form is ours
//!             (docs/algorithms/verifiers.md)
template <class NumberT, class TargetRowT = row_view<NumberT>, class DraftRowT = TargetRowT>
class residual {
 public:
  //! Begins with R = p.
  ESPALIER_HOST_DEVICE residual(TargetRowT p, DraftRowT q) : p_(p), q_(q) {}

  ESPALIER_HOST_DEVICE std::size_t size() const { return p_.size(); }
  //! The weight of token i, in proportion to R.
  ESPALIER_HOST_DEVICE NumberT operator[](std::size_t i) const { return detail::rest_of(p_[i], share_, q_[i]); }
  ESPALIER_HOST_DEVICE auto team() const { return p_.team(); }
  ESPALIER_HOST_DEVICE const TargetRowT& target() const { return p_; }
  //! R(i); over all tokens it adds up to 1.
  ESPALIER_HOST_DEVICE wide_number at(std::size_t i) const { return static_cast<wide_number>((*this)[i]) / mass_; }

  //! Weights in proportion to (R - times * q)+, for one draw: at() of the result must not be called, since the sum of
  //! the weights is not known. All are 0 if R is nowhere above times * q.
  ESPALIER_HOST_DEVICE residual after(wide_number times) const {
    residual next = *this;
    next.share_ = detail::share_after<NumberT>(now(), times);
    return next;
  }

  //! Sets R := norm((R - times * q)+), and returns the sum before the normalisation. If that is 0 (R is nowhere above
  //! times * q), R stays unchanged.
  //!
  //! Complexity  one pass over p and q
  ESPALIER_HOST_DEVICE wide_number take(wide_number times) {
    const residual next = after(times);
    const wide_number left = detail::mass(next);
    if (!(left > 0)) return 0;
    const wide_number before = mass_;
    share_ = next.share_;
    mass_ = left;
    return left / before;
  }

  ESPALIER_HOST_DEVICE detail::residual_state now() const { return {static_cast<wide_number>(share_), mass_}; }
  ESPALIER_HOST_DEVICE void restore(const detail::residual_state& before) {
    share_ = static_cast<NumberT>(before.share);
    mass_ = before.mass;
  }

 private:
  TargetRowT p_;
  DraftRowT q_;
  NumberT share_ = 0;
  wide_number mass_ = 1;
};

template <class NumberT>
residual(std::span<const NumberT>, std::span<const NumberT>) -> residual<NumberT>;
template <class TargetRowT, class DraftRowT>
residual(TargetRowT, DraftRowT) -> residual<detail::term_type<TargetRowT>, TargetRowT, DraftRowT>;

}  // namespace espalier
