// SPDX-License-Identifier: BSL-1.0
// Tested by tests/core/tree.cpp
#pragma once

#include <cstdint>

namespace espalier {

//! An entry of the vocabulary, 0 to vocab_size - 1.
using token_id = std::int32_t;

//! An index into the tree of one round. Node 0 is the root, the last committed token.
using node_id = std::int32_t;

inline constexpr node_id root_node = 0;
inline constexpr node_id no_node = -1;

}  // namespace espalier
