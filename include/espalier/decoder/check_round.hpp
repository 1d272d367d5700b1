// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/guards.cpp
#pragma once

#include <cstdint>

#include "espalier/core/error.hpp"
#include "espalier/core/require_token.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

//! Checks of a round by a decoder.
namespace espalier::detail {

// Checks the drafted tokens before the target sees them. Errors: input_error for one outside the vocabulary.
inline void require_tokens(tree_view tree, std::int32_t vocab) {
  for (node_id u = 1; u < tree.n_nodes; ++u)
    require_token(tree, u, vocab);
}

// Checks a verdict before caches, drafter and policy get it. Errors: input_error if its node is not in the tree, or its
// token not in the vocabulary.
inline void require_verdict(tree_view tree, verdict v, std::int32_t vocab) {
  if (v.accepted < 0 || v.accepted >= tree.n_nodes) {
    raise<input_error>("the verifier accepts node ", v.accepted, ", but the tree has the nodes 0 to ", tree.n_nodes - 1,
                       ".");
  }
  if (v.token < 0 || v.token >= vocab) {
    raise<input_error>("the verifier gives token ", v.token, " after node ", v.accepted,
                       ", but the vocabulary ends at ", vocab - 1, ".");
  }
}

}  // namespace espalier::detail
