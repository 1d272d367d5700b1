// SPDX-License-Identifier: BSL-1.0
// Tested by tests/interop/masks.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"

namespace espalier::interop {

namespace detail {

// Checks that an array named `what`, which has `given` elements, has room for the elements that are needed.
//
// Errors      input_error that names the array and both numbers
inline void require_room(std::string_view what, std::size_t given, std::int64_t needed) {
  if (static_cast<std::int64_t>(given) < needed) {
    raise<input_error>("the memory for ", what, " has ", given, " elements, but ", needed, " are needed.");
  }
}

}  // namespace detail

//! Reads the parents of n rows from a mask, which is given as sees(row, column). The first row is the root.
//!
//! Shapes      parents [n], parents[0] = -1
//! Complexity  O(n^2) calls of sees
//! Errors      input_error if parents is too small, a row does not see itself or sees a later one, a row does not see
//!             the root, or a row does not see exactly its parent and the rows that its parent sees, besides itself
template <class SeesT>
void read_parents_of_mask(std::int32_t n, const SeesT& sees, std::span<node_id> parents) {
  detail::require_room("parents", parents.size(), n);
  for (std::int32_t row = 0; row < n; ++row) {
    if (!sees(row, row)) raise<input_error>("row ", row, " of the mask does not see itself.");
    node_id parent = no_node;
    for (std::int32_t c = 0; c < n; ++c) {
      if (c == row || !sees(row, c)) continue;
      if (c > row) raise<input_error>("row ", row, " of the mask sees row ", c, ", which comes after it.");
      parent = c;
    }
    if (row > 0 && parent == no_node) raise<input_error>("row ", row, " of the mask does not see the root.");
    for (std::int32_t c = 0; c < parent; ++c) {
      if (sees(row, c) != sees(parent, c)) {
        raise<input_error>("row ", row, " of the mask is no path: its parent is row ", parent,
                           ", and one of them sees row ", c, ", the other does not.");
      }
    }
    parents[static_cast<std::size_t>(row)] = parent;
  }
}

//! Reads the parents of n rows from paths that begin at the root: entry d of a path is the row at depth d, -1 beyond
//! the leaf. Paths of -1 alone are skipped.
//!
//! Shapes      paths [n_paths][length]; parents [n], parents[0] = -1
//! Complexity  O(n_paths * length + n)
//! Errors      option_error for a length outside 1 to 2^20; input_error if parents is too small, a path does not begin
//!             at row 0, has a gap, does not ascend below n, or gives a row another parent than another path, and if a
//!             row is on no path
template <class IntegerT>
void read_parents_of_paths(std::span<const IntegerT> paths, std::int32_t length, std::int32_t n,
                           std::span<node_id> parents) {
  detail::require_room("parents", parents.size(), n);
  require_option("length of paths", length, 1, 1 << 20);
  constexpr node_id unseen = -2;
  for (std::int32_t row = 0; row < n; ++row)
    parents[static_cast<std::size_t>(row)] = row == 0 ? no_node : unseen;
  const auto width = static_cast<std::size_t>(length);
  for (std::size_t p = 0; p < paths.size() / width; ++p) {
    const auto path = paths.subspan(p * width, width);
    bool ended = path[0] == -1;
    if (!ended && path[0] != 0) raise<input_error>("path ", p, " begins at row ", path[0], ", not at the root.");
    for (std::size_t d = 1; d < width; ++d) {
      if (path[d] == -1) {
        ended = true;
        continue;
      }
      if (ended) raise<input_error>("path ", p, " goes on at depth ", d, " after its end.");
      if (path[d] <= path[d - 1] || path[d] >= n) {
        raise<input_error>("path ", p, " goes from row ", path[d - 1], " to row ", path[d],
                           "; rows ascend along a path and lie below ", n, ".");
      }
      node_id& parent = parents[static_cast<std::size_t>(path[d])];
      if (parent != unseen && parent != static_cast<node_id>(path[d - 1])) {
        raise<input_error>("row ", path[d], " follows row ", path[d - 1], " on path ", p, ", but row ", parent,
                           " on another one.");
      }
      parent = static_cast<node_id>(path[d - 1]);
    }
  }
  for (std::int32_t row = 0; row < n; ++row) {
    if (parents[static_cast<std::size_t>(row)] == unseen) raise<input_error>("row ", row, " is on no path.");
  }
}

}  // namespace espalier::interop
