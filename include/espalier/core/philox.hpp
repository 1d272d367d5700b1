// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"

namespace espalier {

namespace detail {

// Philox4x32-10: ten rounds of two 32 x 32 multiplications over a 128-bit counter and a 64-bit key.
// Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 3.3.
ESPALIER_HOST_DEVICE inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                                    std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter = {static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(b),
               static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(a)};
    key[0] += 0x9E3779B9U;
    key[1] += 0xBB67AE85U;
  }
  return counter;
}

}  // namespace detail

//! Production chance: Philox4x32-10 keyed by the seed, counted by sequence, round and place, not by call order. Host and
//! device, one sequence or a batch, give the same numbers. A value: trivially copyable, no state.
//!
//! Complexity  accept, index: one block of Philox; pick: O(number of weights)
//! Source      Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011
class philox_chance {
 public:
  ESPALIER_HOST_DEVICE philox_chance(std::uint64_t seed, std::uint32_t sequence, std::uint32_t round)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        sequence_(sequence),
        round_(round) {}

  //! Uniform in [0, 1) with 53 bits.
  ESPALIER_HOST_DEVICE double uniform(place at) const {
    const auto bits = detail::philox4x32(
        {static_cast<std::uint32_t>(at.node),
         (static_cast<std::uint32_t>(at.slot) << 2) | static_cast<std::uint32_t>(at.use), round_, sequence_},
        key_);
    const std::uint64_t high = (std::uint64_t{bits[0]} << 32) | bits[1];
    return static_cast<double>(high >> 11) * 0x1.0p-53;
  }

  ESPALIER_HOST_DEVICE bool accept(double p, double q, place at) const { return uniform(at) * q < p; }

  template <Weights WeightsT>
  ESPALIER_HOST_DEVICE std::int32_t pick(const WeightsT& weights, place at) const {
    return detail::categorical(weights, uniform(at));
  }

  ESPALIER_HOST_DEVICE std::int32_t index(std::int32_t n, place at) const {
    const auto i = static_cast<std::int32_t>(uniform(at) * n);
    return i < n ? i : n - 1;
  }

 private:
  std::array<std::uint32_t, 2> key_;
  std::uint32_t sequence_;
  std::uint32_t round_;
};

static_assert(Chance<philox_chance>);

}  // namespace espalier
