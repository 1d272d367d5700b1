// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace espalier {

//! How the children of a node came about: what a verifier must know to be lossless. Values form sets with |.
//!
//! A policy names one regime, or several where its trees belong to several; a verifier names the set that it can handle.
enum class regime : unsigned {
  deterministic = 1,        //!< top-k and the like: chance has no part in it
  iid = 2,                  //!< each child drawn independently from the same row, with multiplicity
  without_replacement = 4,  //!< each child drawn from what the previous ones left
  single_path = 8,          //!< a chain of draws, one a node: also iid and without replacement
  any = 15,
};

constexpr regime operator|(regime a, regime b) {
  return static_cast<regime>(static_cast<unsigned>(a) | static_cast<unsigned>(b));
}

//! Whether a verifier that is lossless for `verifier` handles the trees that a policy calls `policy`.
constexpr bool compatible(regime policy, regime verifier) {
  return (static_cast<unsigned>(policy) & static_cast<unsigned>(verifier)) != 0;
}

}  // namespace espalier
