// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier::cuda {

//! The most probable tokens of the rows of blocks, in the memory of the device.
//!
//! Shapes      tokens, log_probs: [places][n_rows][n_ranks], the most probable first; a log-probability of minus
//!             infinity ends a list
struct prefix_lists {
  const token_id* tokens = nullptr;
  const float* log_probs = nullptr;
  std::int32_t n_rows = 0;
  std::int32_t n_ranks = 0;

  //! Those of one text.
  ESPALIER_HOST_DEVICE prefix_lists of(std::int32_t place) const {
    const std::ptrdiff_t first = static_cast<std::ptrdiff_t>(place) * n_rows * n_ranks;
    return {tokens + first, log_probs + first, n_rows, n_ranks};
  }
};

}  // namespace espalier::cuda
