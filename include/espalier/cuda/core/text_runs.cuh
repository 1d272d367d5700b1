// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier::cuda {

//! What a SequenceDrafter answers: the tokens of espalier::token_run of each text, in the memory of the device. How far
//! a match goes back is not told: no policy of the device asks.
//!
//! Shapes      tokens [places][max], of which the first n of each are there; n [places]
struct text_runs {
  const token_id* tokens = nullptr;
  const std::int32_t* n = nullptr;
  std::int32_t max = 0;

  ESPALIER_HOST_DEVICE const token_id* of(std::int32_t place) const {
    return tokens + static_cast<std::ptrdiff_t>(place) * max;
  }
};

}  // namespace espalier::cuda
