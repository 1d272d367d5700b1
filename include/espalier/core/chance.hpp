// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! What a random number is for. Part of its key, so that no two decisions share one.
enum class purpose : std::uint32_t {
  draft,     //!< drawing a child
  accept,    //!< accepting or rejecting a draw
  residual,  //!< drawing the target's own token
  select,    //!< choosing among draws
};

//! Where in a round a random number is used. Equal places give equal numbers, whatever the order of the calls.
struct place {
  node_id node = root_node;
  std::int32_t slot = 0;  //!< which draw of the node
  purpose use = purpose::accept;
};

//! The only source of randomness, with three verbs.
//!
//! Minimal definition
//!   accept(p, q, place) -> bool    true with probability min(1, p / q): u * q < p for u uniform in [0, 1)
//!   pick(weights, place) -> index  i with probability weights[i] / sum; weights need not be normalised
//!   index(n, place) -> index       uniform in 0 .. n - 1
//! Laws
//!   accept never holds for p = 0; pick never returns an index of weight zero
//! Models
//!   philox_chance (production), enumerating_chance (proofs)
template <class ChanceT>
concept Chance = requires(ChanceT& chance, double p, std::span<const float> weights, std::int32_t n, place at) {
  { chance.accept(p, p, at) } -> std::same_as<bool>;
  { chance.pick(weights, at) } -> std::convertible_to<std::int32_t>;
  { chance.index(n, at) } -> std::convertible_to<std::int32_t>;
};

namespace detail {

// The sum of the weights in double, in blocks of 256: the error is that of some hundred additions, not of one a weight.
template <class WeightT>
ESPALIER_HOST_DEVICE double total_weight(std::span<const WeightT> weights) {
  double total = 0;
  std::size_t i = 0;
  while (i < weights.size()) {
    const std::size_t end = weights.size() - i < 256 ? weights.size() : i + 256;
    double part = 0;
    for (; i < end; ++i)
      part += static_cast<double>(weights[i]);
    total += part;
  }
  return total;
}

// The smallest i with weights[i] > 0 and u * sum < weights[0] + .. + weights[i]; if none, the last with weight.
// -1 where all weights are zero.
template <class WeightT>
ESPALIER_HOST_DEVICE std::int32_t categorical(std::span<const WeightT> weights, double u) {
  const double r = u * total_weight(weights);
  double sum = 0;
  std::int32_t last = -1;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] > 0)) continue;
    sum += static_cast<double>(weights[i]);
    last = static_cast<std::int32_t>(i);
    if (r < sum) return last;
  }
  return last;
}

}  // namespace detail

}  // namespace espalier
