// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <string_view>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier::detail {

// Checks that a token that a processor names is in the model's vocabulary, before the first round.
//
// Errors      input_error that names the processor and the token
inline void require_known_token(std::string_view processor, token_id token, std::int32_t vocab_size) {
  if (token < 0 || token >= vocab_size)
    raise<input_error>(processor, " names token ", token, ", but the vocabulary ends at ", vocab_size - 1, ".");
}

}  // namespace espalier::detail
