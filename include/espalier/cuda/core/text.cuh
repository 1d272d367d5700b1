// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/token.hpp"

namespace espalier::cuda {

//! How far a text is, and the key of its random numbers.
struct text_state {
  std::int32_t size;  //!< tokens, the last of which is pending: its row is not in the target's cache
  std::int32_t end;   //!< tokens it may come to; rounds after that commit nothing
  std::uint32_t stream = 0;
  std::uint64_t seed = 0;
};

//! The text of one sequence in the memory of the device: trivially copyable, by value into kernels.
//!
//! Shapes      tokens [capacity + 1]; state [1]
//! Law         between rounds the target's cache holds state->size - 1 rows: accepted paths are moved together in place
struct text_view {
  token_id* tokens = nullptr;
  text_state* state = nullptr;
  std::int32_t capacity = 0;  //!< tokens that the text may have
};

}  // namespace espalier::cuda
