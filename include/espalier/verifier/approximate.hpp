// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <utility>

#include "espalier/concepts/regime.hpp"

namespace espalier {

//! A verifier that changes the distribution of the text, with the word that says so: a decoder takes a rule that is not
//! lossless only as approximate<rule>.
//!
//!     auto decode = make_decoder(drafter, chain(), approximate(typical_acceptance()), kv, target);
//!
//! A rule is a verifier that has approximate_for, the regimes of the trees that it can judge, in place of lossless.
//!
//! Law         the text is distributed as the rule writes it, not as the target does; check_lossless() refuses it
//! Errors      as the rule
template <class RuleT>
struct approximate : RuleT {
  //! The regimes for which a decoder takes the rule. For none of them is it lossless.
  static constexpr regime lossless = RuleT::approximate_for;

  explicit approximate(RuleT rule) : RuleT(std::move(rule)) {}
};

}  // namespace espalier
