// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/interop/row_parents.hpp"
#include "espalier/interop/sequence_mask.hpp"
#include "espalier/interop/tensorrt_tree.hpp"

namespace espalier::interop {

//! The order in which the paths of the leaves are written.
enum class leaf_order {
  medusa,  //!< reversed breadth-first order: the last leaf first
  eagle,   //!< lexicographic order of the rows along the path; a missing row, -1, counts as the largest
};

//! The buffers of Medusa and EAGLE-1 for one tree of n rows, breadth first.
//!
//! Shapes      tree_indices [n]: index of the row's token among the candidates, rank + topk * (depth - 1) + 1, the
//!             root's 0; tree_position_ids [n]: depths; tree_attn_mask [n][n]: 1 if visible, else 0; retrieve_indices
//!             [leaves][width], width the largest depth plus 1 or more: rows along the path, -1 beyond the leaf
struct medusa_tree {
  std::span<std::int64_t> tree_indices;
  std::span<std::int64_t> tree_position_ids;
  std::span<float> tree_attn_mask;
  std::span<std::int64_t> retrieve_indices;
};

//! Writes the buffers of the tree of one sequence of a batch. Returns the number of leaves.
//!
//! Shapes      ranks [n_rows]: rank of a row's token among its parent's candidates, from 0 to topk - 1; the root's
//!             entry is not read
//! Pre         sequence is an index of batch.sequences
//! Complexity  O(n^2)
//! Errors      option_error for a topk below 1; input_error if rows are not in breadth-first order, ranks of siblings
//!             do not ascend, a path is longer than width, or a buffer is too small
//! Source      Cai et al., Medusa, generate_medusa_buffers; Li et al., EAGLE, generate_tree_buffers
inline std::int32_t write_medusa_tree(const forward_batch_view& batch, std::size_t sequence,
                                      std::span<const std::int32_t> ranks, std::int32_t topk, std::int32_t width,
                                      leaf_order leaves, const medusa_tree& out) {
  require_option("topk", topk, 1, 1 << 20);
  const batch_sequence& s = batch.sequences[sequence];
  const sequence_mask mask(s, batch.mask.data());
  const std::int32_t n = mask.n_rows;
  detail::require_room("ranks", ranks.size(), n);
  detail::require_room("tree_indices", out.tree_indices.size(), n);
  detail::require_room("tree_position_ids", out.tree_position_ids.size(), n);
  detail::require_room("tree_attn_mask", out.tree_attn_mask.size(), static_cast<std::int64_t>(n) * n);
  const auto depth = [&](std::int32_t row) {
    const auto first = static_cast<std::size_t>(s.row_begin);
    return batch.positions[first + static_cast<std::size_t>(row)] - batch.positions[first];
  };
  for (std::int32_t row = 0; row < n; ++row) {
    const auto i = static_cast<std::size_t>(row);
    if (row > 1 && mask.parent(row) < mask.parent(row - 1)) {
      raise<input_error>("row ", row, " is not in breadth-first order, as Medusa's tree wants it.");
    }
    const bool follows = row > 1 && mask.parent(row) == mask.parent(row - 1);
    if (row > 0 && (ranks[i] < 0 || ranks[i] >= topk || (follows && ranks[i] <= ranks[i - 1]))) {
      raise<input_error>("row ", row, " has rank ", ranks[i],
                         "; ranks of siblings ascend from 0 or more and lie below ", topk, ".");
    }
    if (depth(row) >= width) {
      raise<input_error>("row ", row, " is at depth ", depth(row), ", beyond the ", width,
                         " columns of retrieve_indices.");
    }
    out.tree_indices[i] = row == 0 ? 0 : ranks[i] + static_cast<std::int64_t>(topk) * (depth(row) - 1) + 1;
    out.tree_position_ids[i] = depth(row);
    for (std::int32_t c = 0; c < n; ++c)
      out.tree_attn_mask[i * static_cast<std::size_t>(n) + static_cast<std::size_t>(c)] =
          mask.sees(row, mask.prefix + c) ? 1.0F : 0.0F;
  }
  std::int32_t n_leaves = 0;
  const auto write = [&](std::int32_t leaf) {
    const auto first = static_cast<std::size_t>(n_leaves++) * static_cast<std::size_t>(width);
    detail::require_room("retrieve_indices", out.retrieve_indices.size(), static_cast<std::int64_t>(n_leaves) * width);
    std::fill_n(out.retrieve_indices.begin() + static_cast<std::ptrdiff_t>(first), width, -1);
    for (std::int32_t r = leaf; r >= 0; r = mask.parent(r))
      out.retrieve_indices[first + static_cast<std::size_t>(depth(r))] = r;
  };
  if (leaves == leaf_order::medusa) {
    for (std::int32_t row = n - 1; row >= 0; --row) {
      if (detail::first_child(mask, row) < 0) write(row);
    }
  } else {  // from left to right, since no path is the beginning of another one
    std::int32_t leaf = 0;
    for (std::int32_t child = 0; child >= 0; child = detail::first_child(mask, child))
      leaf = child;
    for (; leaf >= 0; leaf = detail::next_leaf(mask, leaf))
      write(leaf);
  }
  return n_leaves;
}

}  // namespace espalier::interop
