// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/states.cpp
#pragma once

#include <cstdint>

#include "espalier/core/sampling_options.hpp"

namespace espalier {

//! The state of a text at the beginning of a round, for policies that look at it before they draft.
struct round_start {
  std::int32_t length = 0;  //!< tokens of the text, or of the window of it that the target sees; pending token included
  sampling_options sampling{};  //!< the options by which the target samples
  bool read = false;            //!< true if the policy has read the target's row that the pending token was drawn from
};

}  // namespace espalier
