// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/core/chance.hpp"
#include "espalier/core/wide_number.hpp"

namespace espalier {

namespace detail {

// Philox4x32-10: ten rounds of two 32 x 32 multiplications over a 128-bit counter and a 64-bit key.
// Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011), section 3.3.
//
// Shapes      counter [4], replaced by the random words
ESPALIER_HOST_DEVICE inline void philox4x32(std::uint32_t (&counter)[4], std::uint32_t key0, std::uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53U} * counter[0];
    const std::uint64_t b = std::uint64_t{0xCD9E8D57U} * counter[2];
    counter[0] = static_cast<std::uint32_t>(b >> 32) ^ counter[1] ^ key0;
    counter[1] = static_cast<std::uint32_t>(b);
    counter[2] = static_cast<std::uint32_t>(a >> 32) ^ counter[3] ^ key1;
    counter[3] = static_cast<std::uint32_t>(a);
    key0 += 0x9E3779B9U;
    key1 += 0xBB67AE85U;
  }
}

}  // namespace detail

//! The chance for decoding outside of tests: Philox4x32-10, whose key is the seed. Its counter is made of the stream,
//! the length of the text and the chance_key, and not of the order of calls. So host and device get the same numbers,
//! and a text gets the same numbers alone or among others. Trivially copyable, without state.
//!
//! Complexity  accept, index: one block of Philox; pick: O(number of weights)
//! Source      Salmon et al., Parallel random numbers: as easy as 1, 2, 3, SC 2011
class philox_chance {
 public:
  static constexpr bool goes_by_key = true;

  //! Makes the chance of a round that begins when the text has `length` tokens. Every round commits at least one token,
  //! so no two rounds of a text begin with the same length. Texts with the same seed get different numbers if each has
  //! a `stream` of its own. Where there is no decoder, round_chance() takes the length from the text.
  ESPALIER_HOST_DEVICE philox_chance(std::uint64_t seed, std::uint32_t stream, std::uint32_t length)
      : key_{static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)},
        stream_(stream),
        length_(length) {}

  //! A number uniform in [0, 1), with the precision of its type: 53 bits (double) or 24 (float).
  ESPALIER_HOST_DEVICE wide_number uniform(chance_key at) const {
    const auto node = static_cast<std::uint32_t>(at.node);
    const bool of_text = at.use == purpose::token;  // its number does not depend on the round that draws it
    std::uint32_t words[4] = {of_text ? 0 : node,
                              (static_cast<std::uint32_t>(at.slot) << 3) | static_cast<std::uint32_t>(at.use),
                              of_text ? length_ + node : length_, stream_};
    detail::philox4x32(words, key_[0], key_[1]);
    const std::uint64_t high = (std::uint64_t{words[0]} << 32) | words[1];
    if constexpr (std::is_same_v<wide_number, float>)
      return static_cast<wide_number>(high >> 40) * 0x1.0p-24F;
    else
      return static_cast<wide_number>(high >> 11) * 0x1.0p-53;
  }

  ESPALIER_HOST_DEVICE bool accept(wide_number p, wide_number q, chance_key at) const { return uniform(at) * q < p; }

  template <Weights WeightsT>
  ESPALIER_HOST_DEVICE std::int32_t pick(const WeightsT& weights, chance_key at) const {
    return detail::categorical(weights, uniform(at));
  }

  ESPALIER_HOST_DEVICE std::int32_t index(std::int32_t n, chance_key at) const {
    const auto i = static_cast<std::int32_t>(uniform(at) * static_cast<wide_number>(n));
    return i < n ? i : n - 1;
  }

 private:
  std::uint32_t key_[2];
  std::uint32_t stream_;
  std::uint32_t length_;
};

static_assert(Chance<philox_chance>);

}  // namespace espalier
