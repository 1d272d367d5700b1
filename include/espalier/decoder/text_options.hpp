// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/seeds.cpp
#pragma once

#include <cstdint>
#include <optional>

#include "espalier/core/option.hpp"
#include "espalier/core/sampling_options.hpp"

namespace espalier {

//! Options of a text. Texts with equal parts, prompts, stop conditions and options, the seed among them, are equal
//! wherever they are served.
struct text_options {
  sampling_options sampling{};          //!< how the target's rows are sampled
  std::optional<std::uint64_t> seed{};  //!< if none is given, each text gets a different one: text::seed() tells it
  std::uint32_t stream = 0;             //!< number of a sample: samples with the same seed need different numbers
  std::int32_t log_probs = -1;  //!< the target's log-probabilities in the round record: -1 none, 0 those of the text's
                                //!< tokens, k also those of the k most probable tokens at each position
  bool prompt_log_probs = false;  //!< whether the prompt's tokens except the first get log-probabilities, too, if
                                  //!< log_probs >= 0. The whole prompt is then forwarded. step() tells them, generate()
                                  //!< does not

  static constexpr void describe(auto see) {
    see(option{"log_probs", &text_options::log_probs, "how many of the best at each place, too", -1, 1024});
  }
};

}  // namespace espalier
