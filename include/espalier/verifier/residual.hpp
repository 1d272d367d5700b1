// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <limits>
#include <span>

#include "espalier/core/weights.hpp"

namespace espalier {

//! What the target still has to give after draws from q were rejected: R = norm((p - share * q)+), never stored.
//!
//! Every verifier begins with R = p and takes the draft away again and again, R := norm((R - times * q)+). Since all rows are
//! non-negative, that keeps this form: only `share` and the mass change.
//!
//! Shapes      p, q: [vocab]
//! Law         a token rejected once, with R(x) < times * q(x), has weight 0 from then on
//! Source      Delayed tree expansion, the residual of Algorithms 2, 4 and 5; the form is ours (docs/algorithms.md)
template <class NumberT>
class residual {
 public:
  //! R = p.
  residual(std::span<const NumberT> p, std::span<const NumberT> q) : p_(p), q_(q) {}

  std::size_t size() const { return p_.size(); }
  //! In proportion to R.
  NumberT operator[](std::size_t i) const { return weight(i, share_); }
  //! R itself.
  double at(std::size_t i) const { return static_cast<double>(weight(i, share_)) / mass_; }

  //! Weights in proportion to (R - times * q)+, to draw from once: nothing is summed up. All zero where R is times * q.
  residual after(double times) const {
    residual next = *this;
    next.share_ = share_after(times);
    return next;
  }

  //! R := norm((R - times * q)+), and the mass that was left before it was made 1. Where none is left (R was times * q),
  //! R stays and the mass is 0. Complexity: one pass over p and q.
  double take(double times) {
    const NumberT share = share_after(times);
    const double left = detail::sum_of(size(), [&](std::size_t i) { return weight(i, share); });
    if (!(left > 0)) return 0;
    share_ = share;
    const double before = mass_;
    mass_ = left;
    return left / before;
  }

 private:
  // Finite, so that it takes nothing where q is 0.
  NumberT share_after(double times) const {
    const double share = static_cast<double>(share_) + times * mass_;
    return static_cast<NumberT>((std::min)(share, static_cast<double>((std::numeric_limits<NumberT>::max)())));
  }

  NumberT weight(std::size_t i, NumberT share) const {
    const NumberT d = p_[i] - share * q_[i];
    return d > 0 ? d : NumberT{0};
  }

  std::span<const NumberT> p_;
  std::span<const NumberT> q_;
  NumberT share_ = 0;
  double mass_ = 1;
};

}  // namespace espalier
