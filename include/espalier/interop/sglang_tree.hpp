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

namespace espalier::interop {

//! The origin from which the numbers in positions and in retrive_index are counted.
enum class tree_numbering {
  of_batch,  //!< positions: the beginning of the text; retrive_index: the batch's first row. As SGLang counts
  of_tree,   //!< the root, for both: TensorRT-LLM's dynamic tree, which has SGLang's arrays as std::int32_t
};

//! SGLang's arrays of trees with n rows each. The names are spelled as SGLang spells them; SGLang's elements are
//! std::int64_t.
//!
//! Shapes      all [n_sequences][n]. positions: the position of each row; retrive_index: the number of each row; both
//!             counted as tree_numbering says. retrive_next_token: row of the first child; retrive_next_sibling: row of
//!             the next child of the same parent; both -1 if there is none. In these two, rows are counted from the
//!             sequence's first one; siblings are linked in ascending order
template <class IntegerT>
struct sglang_tree {
  std::span<IntegerT> positions;
  std::span<IntegerT> retrive_index;
  std::span<IntegerT> retrive_next_token;
  std::span<IntegerT> retrive_next_sibling;
};

//! Writes SGLang's arrays of the trees of a batch. If a sequence has fewer than n rows, its further entries have the
//! position of its root, and no links.
//!
//! Complexity  O(n_sequences * n * mask words)
//! Errors      input_error if a sequence has no row or more rows than n, or an array is too small
//! Source      SGLang, build_tree_kernel_efficient, 2026
template <class IntegerT>
void write_sglang_tree(const forward_batch_view& batch, std::int32_t n, const sglang_tree<IntegerT>& out,
                       tree_numbering numbering = tree_numbering::of_batch) {
  const std::int64_t size = static_cast<std::int64_t>(batch.sequences.size()) * n;
  detail::require_room("positions", out.positions.size(), size);
  detail::require_room("retrive_index", out.retrive_index.size(), size);
  detail::require_room("retrive_next_token", out.retrive_next_token.size(), size);
  detail::require_room("retrive_next_sibling", out.retrive_next_sibling.size(), size);
  for (std::size_t b = 0; b < batch.sequences.size(); ++b) {
    const batch_sequence& s = batch.sequences[b];
    const sequence_mask mask(s, batch.mask.data());
    if (mask.n_rows > n || mask.n_rows < 1) {
      raise<input_error>("SGLang's tree of ", n, " rows cannot be that of the ", mask.n_rows, " rows of sequence ",
                         s.sequence, ".");
    }
    const std::size_t first = b * static_cast<std::size_t>(n), root = static_cast<std::size_t>(s.row_begin);
    const bool is_relative = numbering == tree_numbering::of_tree;
    for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
      const std::size_t row = i < static_cast<std::size_t>(mask.n_rows) ? i : 0;
      out.positions[first + i] = batch.positions[root + row] - (is_relative ? batch.positions[root] : 0);
      out.retrive_index[first + i] = static_cast<IntegerT>(is_relative ? i : first + i);
      out.retrive_next_token[first + i] = out.retrive_next_sibling[first + i] = -1;
    }
    for (std::int32_t row = mask.n_rows - 1; row > 0; --row) {  // later siblings first
      IntegerT& head = out.retrive_next_token[first + static_cast<std::size_t>(mask.parent(row))];
      out.retrive_next_sibling[first + static_cast<std::size_t>(row)] = head;
      head = row;
    }
  }
}

//! Reads the tree of one sequence from retrive_next_token and retrive_next_sibling.
//!
//! Shapes      next_token, next_sibling, parents: [n]
//! Errors      input_error if an array is too small, a link does not go to a later row, or a row is linked twice or
//!             never
template <class IntegerT>
void read_sglang_tree(std::span<const IntegerT> next_token, std::span<const IntegerT> next_sibling,
                      std::span<node_id> parents) {
  const auto n = static_cast<std::int32_t>(next_token.size());
  detail::require_room("retrive_next_sibling", next_sibling.size(), n);
  detail::require_room("parents", parents.size(), n);
  constexpr node_id unseen = -2;
  std::fill_n(parents.begin(), n, unseen);
  if (n > 0) parents[0] = no_node;
  for (std::int32_t row = 0; row < n; ++row) {
    IntegerT child = next_token[static_cast<std::size_t>(row)];
    for (IntegerT last = row; child != -1; child = next_sibling[static_cast<std::size_t>(child)]) {
      if (child <= last || child >= n) {
        raise<input_error>("row ", last, " is linked to row ", child, "; links go to later rows below ", n, ".");
      }
      node_id& parent = parents[static_cast<std::size_t>(child)];
      if (parent != unseen) raise<input_error>("row ", child, " is linked twice.");
      parent = row;
      last = child;
    }
  }
  for (std::int32_t row = 0; row < n; ++row) {
    if (parents[static_cast<std::size_t>(row)] == unseen)
      raise<input_error>("row ", row, " is not linked from any row.");
  }
}

//! Reads the tree that SGLang's draft has selected among its candidates. The parent of candidate c is the root if
//! c / topk is 0, otherwise the candidate parent_list[c / topk], which must be selected, too.
//!
//! Shapes      selected_index [n - 1], ascending; parents [n]: the parent row of each row; row i + 1 stands for
//!             selected_index[i]
//! Complexity  O(n log n)
//! Errors      option_error for a topk below 1; input_error if selected_index does not ascend, parents or parent_list
//!             is too small, or a parent is not selected
//! Source      SGLang, build_tree_kernel_efficient, 2026
inline void read_sglang_selection(std::span<const std::int64_t> parent_list,
                                  std::span<const std::int64_t> selected_index, std::int64_t topk,
                                  std::span<node_id> parents) {
  require_option("topk", topk, 1, 1 << 20);
  detail::require_room("parents", parents.size(), static_cast<std::int64_t>(selected_index.size()) + 1);
  parents[0] = no_node;
  for (std::size_t i = 0; i < selected_index.size(); ++i) {
    const std::int64_t selected = selected_index[i];
    if (selected < 0 || (i > 0 && selected <= selected_index[i - 1])) {
      raise<input_error>("entry ", i, " of selected_index is ", selected, "; the entries ascend from 0 or more.");
    }
    const std::int64_t p = selected / topk;
    if (p == 0) {
      parents[i + 1] = root_node;
      continue;
    }
    if (p >= static_cast<std::int64_t>(parent_list.size())) {
      raise<input_error>("candidate ", selected, " has parent ", p, " of parent_list, which has ", parent_list.size(),
                         " entries.");
    }
    const std::int64_t above = parent_list[static_cast<std::size_t>(p)];
    const auto end = selected_index.begin() + static_cast<std::ptrdiff_t>(i);
    const auto found = std::lower_bound(selected_index.begin(), end, above);
    if (found == end || *found != above) {
      raise<input_error>("candidate ", selected, " follows candidate ", above, ", which is not selected before it.");
    }
    parents[i + 1] = static_cast<node_id>(found - selected_index.begin()) + 1;
  }
}

//! Writes a selection, as read_sglang_selection() reads it, for the rows of one sequence. SGLang's own kernels make the
//! tree from it.
//!
//! Shapes      selected_index [n_rows - 1]; parent_list [1 + m, or more] if m rows besides the root have children;
//!             -1 in unused entries
//! Errors      option_error for a topk below 1; input_error if the rows are not in breadth-first order, a row has more
//!             than topk children, or an array is too small
inline void write_sglang_selection(const forward_batch_view& batch, std::size_t sequence, std::int64_t topk,
                                   std::span<std::int64_t> parent_list, std::span<std::int64_t> selected_index) {
  require_option("topk", topk, 1, 1 << 20);
  const sequence_mask mask(batch.sequences[sequence], batch.mask.data());
  detail::require_room("selected_index", selected_index.size(), mask.n_rows - 1);
  detail::require_room("parent_list", parent_list.size(), 1);
  std::fill(parent_list.begin(), parent_list.end(), -1);
  std::int64_t slot = 0, children = 0;  // of the present parent: index in parent_list, number of children so far
  std::int32_t parent = root_node;
  for (std::int32_t row = 1; row < mask.n_rows; ++row) {
    const std::int32_t above = mask.parent(row);
    if (above < parent)
      raise<input_error>("row ", row, " is not in breadth-first order, as SGLang's selection wants it.");
    if (above > parent) {
      parent = above;
      children = 0;
      detail::require_room("parent_list", parent_list.size(), ++slot + 1);
      parent_list[static_cast<std::size_t>(slot)] = selected_index[static_cast<std::size_t>(parent) - 1];
    }
    if (children == topk) raise<input_error>("row ", parent, " has more than ", topk, " children.");
    selected_index[static_cast<std::size_t>(row) - 1] = slot * topk + children++;
  }
}

}  // namespace espalier::interop
