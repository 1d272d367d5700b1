// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace espalier {

//! How the children of a node were chosen: what a verifier must know to be lossless. Values form sets with |.
//!
//! A policy names every regime that all of its trees belong to (trees of mixed kinds belong to none); a verifier names
//! every regime that it can handle. A policy and a verifier fit if at least one regime is named by both.
enum class regime : unsigned {
  deterministic = 1,        //!< each child chosen without chance, as by top-k
  iid = 2,                  //!< each child drawn independently from the same row, with multiplicity
  without_replacement = 4,  //!< each child drawn from the row without the previous children, renormalised
  single_path = 8,          //!< at most one draw at each node; such a policy may name iid and without_replacement, too
  any = 15,
};

constexpr regime operator|(regime a, regime b) {
  return static_cast<regime>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

//! True if a policy and a verifier fit: the policy names at least one of the regimes for which the verifier is
//! lossless.
constexpr bool compatible(regime policy, regime verifier) {
  return (static_cast<unsigned>(policy) & static_cast<unsigned>(verifier)) != 0;
}

}  // namespace espalier
