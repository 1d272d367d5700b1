// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <string_view>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier::detail {

// What a processor names must be tokens of the model: in a round it is too late to say so.
inline void require_known_token(std::string_view processor, token_id token, std::int32_t vocab_size) {
  if (token < 0 || token >= vocab_size)
    raise<input_error>(processor, " names token ", token, ", but the vocabulary ends at ", vocab_size - 1, ".");
}

}  // namespace espalier::detail
