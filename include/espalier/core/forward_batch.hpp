// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

//! The owner and builder of a forward_batch_view. Fill one sequence after the other: begin_sequence, then its rows.
//!
//! Complexity  no allocation for a batch with no more rows, columns and sequences than reserve() was called with
class forward_batch {
 public:
  //! Makes room for batches of at most this many rows and sequences, whose masks cover at most `columns` scratch slots.
  void reserve(int rows, int columns, int sequences = 1) {
    const auto n = static_cast<std::size_t>(rows);
    tokens_.reserve(n), positions_.reserve(n), slots_.reserve(n), outputs_.reserve(n);
    mask_.reserve(n * static_cast<std::size_t>(mask_words(columns)));
    sequences_.reserve(static_cast<std::size_t>(sequences));
  }

  //! Number of bytes that reserve() takes of an arena, for one sequence.
  static constexpr std::size_t bytes(std::int32_t rows, std::int32_t columns) {
    const auto n = static_cast<std::size_t>(rows);
    return 4 * arena::bytes_of<std::int32_t>(n) +
           arena::bytes_of<std::uint32_t>(n * static_cast<std::size_t>(mask_words(columns))) +
           arena::bytes_of<batch_sequence>(1);
  }

  void clear() {
    tokens_.clear(), positions_.clear(), slots_.clear(), outputs_.clear(), mask_.clear(), sequences_.clear();
  }

  //! Begins the rows of this sequence, which has `prefix` committed cache rows; the masks of its rows cover `columns`
  //! scratch slots after those.
  void begin_sequence(std::int32_t sequence, std::int32_t prefix, std::int32_t columns) {
    const std::int32_t row = n_rows();
    sequences_.push_back({sequence, row, row, prefix, static_cast<std::int32_t>(mask_.size()), mask_words(columns)});
  }

  //! Adds a row whose keys and values go to scratch slot `column`. Returns its mask row, in which only this slot is
  //! visible yet; the mask row is valid until the next row is added.
  //!
  //! Pre         begin_sequence() was called since clear()
  mask_row add_row(token_id token, std::int32_t position, std::int32_t column, bool wants_logits) {
    batch_sequence& s = sequences_.back();
    const std::int32_t row = s.row_end++;
    if (wants_logits) outputs_.push_back(row);
    tokens_.push_back(token);
    positions_.push_back(position);
    slots_.push_back(s.prefix + column);
    mask_.resize(mask_.size() + static_cast<std::size_t>(s.mask_words), 0U);
    mask_row mask = mask_of(row);
    mask.set(column);
    return mask;
  }

  //! Adds a run of consecutive tokens in scratch slots 0, 1, ...: committed text that the cache does not hold yet. The
  //! first of them has position first_position, and each sees those before it. The last n_outputs of their rows ask for
  //! logits.
  //!
  //! Pre         n_outputs <= the number of tokens; the sequence has no rows in the batch yet
  void add_chain(std::span<const token_id> tokens, std::int32_t first_position, std::int32_t n_outputs) {
    const std::size_t first_output = tokens.size() - static_cast<std::size_t>(n_outputs);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto column = static_cast<std::int32_t>(i);
      add_row(tokens[i], first_position + column, column, i >= first_output).include_first(column);
    }
  }

  //! Adds the nodes of a tree below its root, in the given order, in the scratch slots that follow the root's. Each
  //! node asks for logits.
  //!
  //! Pre         the last row is the tree's root, in scratch slot root_column; order was computed for this tree
  //! Post        the row of node u, u > 0, is the root's row plus order.rows()[u]
  void add_tree(tree_view tree, const tree_order& order, std::int32_t root_column) {
    const std::int32_t root_row = n_rows() - 1;
    const std::int32_t root_position = positions_.back();
    for (std::int32_t i = 1; i < tree.n_nodes; ++i) {
      const node_id u = order.nodes()[static_cast<std::size_t>(i)];
      const std::int32_t parent_row = root_row + order.rows()[static_cast<std::size_t>(tree.parent[u])];
      add_row(tree.token[u], root_position + tree.depth[u], root_column + i, true).include(mask_of(parent_row));
    }
  }

  std::int32_t n_rows() const { return static_cast<std::int32_t>(tokens_.size()); }
  std::int32_t n_outputs() const { return static_cast<std::int32_t>(outputs_.size()); }

  //! The batch as a backend reads it; valid until the batch changes.
  forward_batch_view view() const { return {tokens_, positions_, slots_, sequences_, mask_, outputs_}; }

 private:
  // The mask row of a batch row.
  //
  // Pre         the row belongs to the last sequence
  mask_row mask_of(std::int32_t row) {
    const batch_sequence& s = sequences_.back();
    return {mask_.data() + s.mask_begin + static_cast<std::ptrdiff_t>(row - s.row_begin) * s.mask_words, s.mask_words};
  }

  detail::list<token_id> tokens_;
  detail::list<std::int32_t> positions_;
  detail::list<std::int32_t> slots_;
  detail::list<std::int32_t> outputs_;
  detail::list<std::uint32_t> mask_;
  detail::list<batch_sequence> sequences_;
};

}  // namespace espalier
