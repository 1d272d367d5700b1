// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/guards.cpp
#pragma once

#include <cstdint>
#include <string_view>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier::detail {

// Checks that a token is in the model's vocabulary. The constructors of processors and of vocabulary_trie call it for
// each token that they were given. The message begins with `processor`, which says where the token was given.
//
// Errors      input_error with `processor`, the token and the last token of the vocabulary
inline void require_known_token(std::string_view processor, token_id token, std::int32_t vocab_size) {
  if (token < 0 || token >= vocab_size)
    raise<input_error>(processor, " names token ", token, ", but the vocabulary ends at ", vocab_size - 1, ".");
}

// Checks that the token of node u is in the vocabulary, before a model looks it up.
//
// Errors      input_error that names the node and the token
inline void require_token(tree_view tree, node_id u, std::int32_t vocab) {
  if (tree.token[u] < 0 || tree.token[u] >= vocab) {
    raise<input_error>("token ", tree.token[u], " was drafted at node ", u, ", but the vocabulary ends at ", vocab - 1,
                       ".");
  }
}

}  // namespace espalier::detail
