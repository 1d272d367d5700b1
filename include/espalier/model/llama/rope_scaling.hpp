// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/model_config.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace espalier {

//! The way in which rotary embeddings are slowed down for contexts longer than a model was first trained for.
//!
//! Source      transformers, modeling_rope_utils: linear, llama3, yarn (Peng et al., YaRN, section 3), longrope (Ding
//!             et al., LongRoPE); GGUF's rope_freqs. transformers changes to longrope's long divisors when a text grows
//!             beyond the original context, but leaves the keys in its cache as they are; here, and in llama.cpp, all
//!             keys of a text have the same frequencies
struct rope_scaling {
  enum class kind_type { none, linear, llama3, yarn, divided, longrope };

  kind_type kind = kind_type::none;
  double factor = 1.0;              //!< linear, llama3, yarn: how many times longer the context has become
  double original_positions = 0.0;  //!< llama3, yarn, longrope: length of the original context
  double low_frequency = 1.0;       //!< llama3: pairs with fewer turns than this in the original context are slowed by
                                    //!< the factor
  double high_frequency = 4.0;      //!< llama3: pairs with more turns than this in the original context are not slowed
  double fast_turns = 32.0;         //!< yarn: pairs with more turns than this in the original context are not slowed
  double slow_turns = 1.0;          //!< yarn: pairs with fewer turns than this in the original context are slowed by
                                    //!< the factor
  bool whole_pairs = true;          //!< yarn: pair numbers at fast_turns and slow_turns are rounded outwards
  double amplitude = 1.0;           //!< yarn, longrope: rotated queries and keys are multiplied by it
  std::vector<float> divisors{};    //!< divided, longrope: [dims / 2] the divisor of each frequency
  std::vector<float> short_divisors{};  //!< longrope: [dims / 2] the divisors of a model that is made for no more
                                        //!< positions than original_positions

  //! Returns the angle in radians by which pair `pair`, one of dims / 2, is rotated from one position to the next, in a
  //! model that is made for `positions` positions. Only longrope depends on their number.
  double frequency(double theta, int dims, int pair, int positions = 0) const {
    const double plain = std::pow(theta, -2.0 * pair / dims);
    switch (kind) {
      case kind_type::linear:
        return plain / factor;
      case kind_type::llama3:
        return llama3(plain);
      case kind_type::yarn: {
        const double share = slowed_share(theta, dims, pair);
        return plain / factor * share + plain * (1.0 - share);
      }
      case kind_type::divided:
        return plain / static_cast<double>(divisors[static_cast<std::size_t>(pair)]);
      case kind_type::longrope: {
        const std::vector<float>& by = positions > original_positions ? divisors : short_divisors;
        return plain / static_cast<double>(by[static_cast<std::size_t>(pair)]);
      }
      default:
        return plain;
    }
  }

  //! Returns the amplitude of yarn for a config that does not give one.
  static double yarn_amplitude(double factor) { return factor > 1.0 ? 0.1 * std::log(factor) + 1.0 : 1.0; }

  //! Returns the amplitude of longrope for a config that does not give one; `original` is original_positions.
  static double longrope_amplitude(double factor, double original) {
    return factor > 1.0 ? std::sqrt(1.0 + std::log(factor) / std::log(original)) : 1.0;
  }

 private:
  static constexpr double turn = 6.283185307179586;

  double llama3(double plain) const {
    const double turns = original_positions * plain / turn;
    if (turns < low_frequency) return plain / factor;
    if (turns > high_frequency) return plain;
    const double share = (turns - low_frequency) / (high_frequency - low_frequency);
    return (1.0 - share) * plain / factor + share * plain;
  }

  // Returns how far a pair is slowed: 0 not at all, 1 by the whole factor.
  double slowed_share(double theta, int dims, int pair) const {
    const auto pair_with = [&](double turns) {
      return dims * std::log(original_positions / (turns * turn)) / (2.0 * std::log(theta));
    };
    double low = pair_with(fast_turns), high = pair_with(slow_turns);
    if (whole_pairs) low = std::floor(low), high = std::ceil(high);
    low = (std::max)(low, 0.0);
    high = (std::min)(high, dims - 1.0);
    if (low == high) high += 0.001;
    return std::clamp((pair - low) / (high - low), 0.0, 1.0);
  }
};

}  // namespace espalier
