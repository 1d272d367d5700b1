// SPDX-License-Identifier: BSL-1.0
// Tested by tests/sampling/sampler.cpp
#pragma once

#include <cstdint>

#include "espalier/core/option.hpp"

namespace espalier {

//! The settings by which logits become the distribution that tokens are drawn from.
struct sampling_options {
  float temperature = 0.0F;  //!< divides the logits; 0: the most probable token is taken
  std::int32_t top_k = 0;    //!< keeps only the k most probable tokens; 0: all
  float top_p = 1.0F;        //!< keeps the most probable tokens, no more than are needed to reach this probability
  float min_p = 0.0F;        //!< keeps only tokens whose probability is at least this fraction of the largest

  friend bool operator==(const sampling_options&, const sampling_options&) = default;

  static constexpr void describe(auto see) {
    using self = sampling_options;
    see(option{"temperature", &self::temperature, "0 takes the most probable token", 0, 100});
    see(option{"top_k", &self::top_k, "only the k most probable tokens; 0: all", 0, 1 << 30});
    see(option{"top_p", &self::top_p, "only the most probable tokens that reach this probability", 1e-6F, 1});
    see(option{"min_p", &self::min_p, "only tokens this fraction as probable as the most probable", 0, 1});
  }
};

}  // namespace espalier
