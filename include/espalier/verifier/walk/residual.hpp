// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <limits>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/row_view.hpp"
#include "espalier/core/weights.hpp"

namespace espalier {

namespace detail {

template <class NumberT>
inline constexpr NumberT largest_number = (std::numeric_limits<NumberT>::max)();

// All that a residual is but its rows.
struct residual_state {
  double share = 0;
  double mass = 1;
};

}  // namespace detail

//! What the target still has to give after draws from q were rejected: R = norm((p - share * q)+), never stored.
//!
//! Every verifier begins with R = p and takes the draft away again and again, R := norm((R - times * q)+). Since all
//! rows are non-negative, that keeps this form: only `share` and the mass change.
//!
//! Shapes      p, q: [vocab]
//! Law         a token rejected once, with R(x) < times * q(x), has weight 0 from then on
//! Source      Delayed tree expansion, the residual of Algorithms 2, 4 and 5; the form is ours
//!             (docs/algorithms/verifiers.md)
template <class NumberT, class TeamT = detail::alone>
class residual {
 public:
  using row = row_view<NumberT, TeamT>;

  //! R = p.
  ESPALIER_HOST_DEVICE residual(row p, row q) : p_(p), q_(q) {}

  ESPALIER_HOST_DEVICE std::size_t size() const { return p_.size(); }
  //! In proportion to R.
  ESPALIER_HOST_DEVICE NumberT operator[](std::size_t i) const {
    const NumberT d = p_[i] - share_ * q_[i];
    return d > 0 ? d : NumberT{0};
  }
  ESPALIER_HOST_DEVICE TeamT team() const { return p_.team(); }
  //! R itself.
  ESPALIER_HOST_DEVICE double at(std::size_t i) const { return static_cast<double>((*this)[i]) / mass_; }

  //! Weights in proportion to (R - times * q)+, to draw from once: nothing is summed up. All zero where R is times * q.
  ESPALIER_HOST_DEVICE residual after(double times) const {
    constexpr auto most = static_cast<double>(detail::largest_number<NumberT>);
    const double share = static_cast<double>(share_) + times * mass_;
    residual next = *this;
    next.share_ = static_cast<NumberT>(share < most ? share : most);  // finite: it takes nothing where q is 0
    return next;
  }

  //! R := norm((R - times * q)+), and the mass that was left before it was made 1. Where none is left (R was times *
  //! q), R stays and the mass is 0. Complexity: one pass over p and q.
  ESPALIER_HOST_DEVICE double take(double times) {
    const residual next = after(times);
    const double left = detail::mass(next);
    if (!(left > 0)) return 0;
    const double before = mass_;
    share_ = next.share_;
    mass_ = left;
    return left / before;
  }

  ESPALIER_HOST_DEVICE detail::residual_state now() const { return {static_cast<double>(share_), mass_}; }
  ESPALIER_HOST_DEVICE void restore(const detail::residual_state& before) {
    share_ = static_cast<NumberT>(before.share);
    mass_ = before.mass;
  }

 private:
  row p_;
  row q_;
  NumberT share_ = 0;
  double mass_ = 1;
};

template <class NumberT>
residual(std::span<const NumberT>, std::span<const NumberT>) -> residual<NumberT>;

}  // namespace espalier
