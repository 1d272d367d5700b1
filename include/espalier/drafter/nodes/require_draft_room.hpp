// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/core/error.hpp"

namespace espalier::detail {

// Of a draft model's pass: whether its cache, of so many tokens, had room for a text, or for nodes of a tree.
inline void require_draft_room(bool has_room, bool of_text, std::size_t text, std::int32_t capacity) {
  if (has_room) return;
  if (of_text) {
    raise<input_error>("a text of ", text, " tokens does not fit the draft model's cache of ", capacity,
                       ", or its pages are used up.");
  }
  raise<input_error>(
      "the draft model's cache of ", capacity,
      " tokens is full, or its pages are used up: the tree has outgrown its limit, or another decoder uses this "
      "drafter.");
}

}  // namespace espalier::detail
