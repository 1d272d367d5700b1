// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/sampling_options.hpp"

namespace espalier {

//! Where a round stands before it drafts, for policies that look at it.
struct round_start {
  std::int32_t length =
      0;  //!< tokens of the text, or of the window that the target sees of it, the pending one included
  sampling_options sampling{};  //!< of the target
  bool read = false;            //!< whether read() told of the row that the pending token came from
};

}  // namespace espalier
