// SPDX-License-Identifier: BSL-1.0
// Tested by tests/core/philox.cpp
#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "espalier/core/token.hpp"
#include "espalier/core/weights.hpp"

namespace espalier {

//! The purpose of a random number. It is part of the number's key, so that no two decisions share a number.
enum class purpose : std::uint32_t {
  draft,     //!< drawing a child
  accept,    //!< accepting or rejecting a drawn token
  residual,  //!< drawing the target's own token, from the residual or from the target's row
  select,    //!< choosing among draws
  //! drawing a token of the text from the target alone; `node` is then the depth of the node after which the token is
  //! drawn, 0 for the root
  token,
};

//! The key of a random number: the point of a round at which it is used. Where the chance goes by key, as philox_chance
//! does, equal keys give equal numbers, whatever the order of the calls. With purpose::token the key means a position
//! in the text: the number is the same in whichever round that token is drawn.
struct chance_key {
  node_id node = root_node;
  std::int32_t slot = 0;  //!< number of the draw among those that are made at the node
  purpose use = purpose::accept;
};

//! The only source of randomness, with three member functions.
//!
//! Minimal definition
//!   accept(p, q, key) -> bool     true with probability min(1, p / q): u * q < p for u uniform in [0, 1)
//!   pick(weights, key) -> index   i with probability weights[i] / sum, for any Weights; -1 if all are zero
//!   index(n, key) -> index        uniform in 0 .. n - 1
//! Optional
//!   static constexpr bool goes_by_key     true if each number depends on its key alone, and not on earlier calls: then
//!                                         a verifier need not ask where the outcome is certain
//! Laws
//!   accept never holds for p = 0; pick never returns an index of weight zero
//! Models
//!   philox_chance (production), enumerating_chance (proofs), script_chance (given numbers)
template <class ChanceT>
concept Chance = requires(ChanceT& chance, double p, std::span<const float> weights, std::int32_t n, chance_key at) {
  { chance.accept(p, p, at) } -> std::same_as<bool>;
  { chance.pick(weights, at) } -> std::convertible_to<std::int32_t>;
  { chance.index(n, at) } -> std::convertible_to<std::int32_t>;
};

}  // namespace espalier
