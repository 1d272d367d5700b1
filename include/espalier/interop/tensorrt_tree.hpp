// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/interop/row_parents.hpp"
#include "espalier/interop/sequence_mask.hpp"

namespace espalier::interop {

//! TensorRT-LLM's arrays of trees of at most max_tokens rows, breadth first: by depth, siblings together in the order
//! of their parents.
//!
//! Shapes      paths [n_sequences][max_tokens][max_path]: entry d of a path is the row at depth d, the root's 0 first,
//!             -1 beyond the leaf; leaves from left to right, then paths of -1 alone. packed_mask
//!             [n_sequences][max_tokens][mask words of max_tokens]: bit c % 32 of word c / 32 is set if the row sees
//!             row c. position_offsets [n_sequences][max_tokens]: depths
struct tensorrt_tree {
  std::span<std::int32_t> paths;
  std::span<std::int32_t> packed_mask;
  std::span<std::int32_t> position_offsets;
};

//! The sizes of the arrays in tensorrt_tree.
struct tensorrt_tree_shape {
  std::int32_t max_tokens = 0;  //!< max_decoding_tokens, the root included
  std::int32_t max_path = 0;    //!< max_path_len, the root included

  ESPALIER_HOST_DEVICE std::int32_t words() const { return (max_tokens + 31) / 32; }
  ESPALIER_HOST_DEVICE std::int64_t n_paths() const { return static_cast<std::int64_t>(max_tokens) * max_path; }
  ESPALIER_HOST_DEVICE std::int64_t n_words() const { return static_cast<std::int64_t>(max_tokens) * words(); }

  //! Checks the sizes.
  //!
  //! Errors      input_error for sizes below 1 or beyond 2^15
  void check() const {
    if (max_tokens < 1 || max_tokens > 1 << 15 || max_path < 1 || max_path > 1 << 15) {
      raise<input_error>("TensorRT-LLM's tree cannot have ", max_tokens, " tokens on paths of ", max_path, ".");
    }
  }
};

namespace detail {

// The first child of a row in breadth-first order, or -1.
inline std::int32_t first_child(const sequence_mask& mask, std::int32_t row) {
  std::int32_t low = row + 1, high = mask.n_rows;
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    if (mask.parent(middle) < row) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low < mask.n_rows && mask.parent(low) == row ? low : -1;
}

// The first leaf, in preorder, after `row` and all its descendants; -1 if there is none.
//
// Pre         rows are in breadth-first order
inline std::int32_t next_leaf(const sequence_mask& mask, std::int32_t row) {
  while (row > 0 && (row + 1 == mask.n_rows || mask.parent(row + 1) != mask.parent(row)))
    row = mask.parent(row);
  if (row <= 0) return -1;
  ++row;
  for (std::int32_t child = row; child >= 0; child = first_child(mask, child))
    row = child;
  return row;
}

}  // namespace detail

//! Writes TensorRT-LLM's arrays of the trees of a batch.
//!
//! Complexity  O(n_sequences * max_tokens * (max_path + words * log n))
//! Errors      as tensorrt_tree_shape::check; input_error if rows are not in breadth-first order, a sequence has no
//!             row, more rows than max_tokens or longer paths than max_path, or an array is too small
//! Source      TensorRT-LLM, speculative decoding with Medusa choices, 2026
inline void write_tensorrt_tree(const forward_batch_view& batch, const tensorrt_tree_shape& shape,
                                const tensorrt_tree& out) {
  shape.check();
  const auto n_sequences = static_cast<std::int64_t>(batch.sequences.size());
  detail::require_room("paths", out.paths.size(), n_sequences * shape.n_paths());
  detail::require_room("the packed mask", out.packed_mask.size(), n_sequences * shape.n_words());
  detail::require_room("position_offsets", out.position_offsets.size(), n_sequences * shape.max_tokens);
  std::size_t word = 0, offset = 0;
  std::int32_t* paths = out.paths.data();
  for (const batch_sequence& s : batch.sequences) {
    const sequence_mask mask(s, batch.mask.data());
    if (mask.n_rows < 1 || mask.n_rows > shape.max_tokens) {
      raise<input_error>("TensorRT-LLM's tree of ", shape.max_tokens, " tokens cannot be that of the ", mask.n_rows,
                         " rows of sequence ", s.sequence, ".");
    }
    const auto depth = [&](std::int32_t row) {
      const auto first = static_cast<std::size_t>(s.row_begin);
      return batch.positions[first + static_cast<std::size_t>(row)] - batch.positions[first];
    };
    for (std::int32_t row = 1; row < mask.n_rows; ++row) {
      if (mask.parent(row) < mask.parent(row - 1)) {
        raise<input_error>("row ", row, " of sequence ", s.sequence,
                           " is not in breadth-first order, as TensorRT-LLM's tree wants it.");
      }
      if (depth(row) >= shape.max_path) {
        raise<input_error>("row ", row, " of sequence ", s.sequence, " is at depth ", depth(row),
                           ", beyond TensorRT-LLM's paths of ", shape.max_path, ".");
      }
    }
    for (std::int32_t row = 0; row < shape.max_tokens; ++row) {
      for (std::int32_t w = 0; w < shape.words(); ++w)
        out.packed_mask[word++] = static_cast<std::int32_t>(mask.word(row, w));
      out.position_offsets[offset++] = row < mask.n_rows ? depth(row) : 0;
    }
    std::fill_n(paths, shape.n_paths(), -1);
    std::int32_t leaf = 0;
    for (std::int32_t child = 0; child >= 0; child = detail::first_child(mask, child))
      leaf = child;
    for (std::int32_t* path = paths; leaf >= 0; leaf = detail::next_leaf(mask, leaf), path += shape.max_path) {
      for (std::int32_t r = leaf; r >= 0; r = mask.parent(r))
        path[depth(r)] = r;
    }
    paths += shape.n_paths();
  }
}

//! Reads the tree of one sequence from its packed mask; read_parents_of_paths reads its paths.
//!
//! Shapes      packed_mask [n or more][words of max_tokens]; parents [n]: the parent row of each row
//! Errors      input_error if words are missing, parents is too small, n is above max_tokens, or the bits are the mask
//!             of no tree
inline void read_tensorrt_mask(std::span<const std::int32_t> packed_mask, std::int32_t n, std::int32_t max_tokens,
                               std::span<node_id> parents) {
  const auto words = static_cast<std::size_t>((max_tokens + 31) / 32);
  detail::require_room("the packed mask", packed_mask.size(),
                       static_cast<std::int64_t>(n) * static_cast<std::int64_t>(words));
  if (n > max_tokens) raise<input_error>("a packed mask of ", max_tokens, " tokens does not have ", n, " rows.");
  const auto sees = [&](std::int32_t row, std::int32_t c) {
    const std::int32_t word = packed_mask[static_cast<std::size_t>(row) * words + static_cast<std::size_t>(c / 32)];
    return (static_cast<std::uint32_t>(word) >> (c % 32) & 1U) != 0;
  };
  read_parents_of_mask(n, sees, parents);
}

}  // namespace espalier::interop
