// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

namespace espalier::cuda {

//! Tokens of a prompt that a pass of the target reads beside the trees of other texts.
struct prompt_chunk {
  std::int32_t place = -1;  //!< of the text; -1: there is none
  std::int32_t first = 0;   //!< number of its first token, which is also its position and slot
  std::int32_t n = 0;       //!< tokens
  std::int32_t row = 0;     //!< of the pass, where its rows begin
};

}  // namespace espalier::cuda
