// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/batch_decoder.cu
#pragma once

#include <cstdint>

namespace espalier::cuda {

//! Tokens of a prompt that a pass of the target reads, beside the trees of other texts.
struct prompt_chunk {
  std::int32_t place = -1;  //!< place of the text; -1: there is no chunk
  std::int32_t first = 0;   //!< index of the first token, which is also its position and its slot
  std::int32_t n = 0;       //!< number of tokens
  std::int32_t row = 0;     //!< row of the pass at which the chunk begins
};

}  // namespace espalier::cuda
