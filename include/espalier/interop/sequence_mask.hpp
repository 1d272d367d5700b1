// SPDX-License-Identifier: BSL-1.0
// Tested by tests/interop/masks.cpp
#pragma once

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"

namespace espalier::interop {

//! A view of the mask of one sequence of a forward batch, and of the tree that follows from it, for host and device.
//! Rows and columns are counted from the sequence's first ones.
//!
//! Shapes      words [n_rows][n_words]
//! Pre         except for sees and n_columns: row i is in scratch slot i, as in every batch of a whole tree, with a
//!             chain before it or without
struct sequence_mask {
  const std::uint32_t* words = nullptr;
  std::int32_t n_words = 0;
  std::int32_t n_rows = 0;
  std::int32_t prefix = 0;

  ESPALIER_HOST_DEVICE sequence_mask(const batch_sequence& s, const std::uint32_t* mask)
      : words(mask + s.mask_begin), n_words(s.mask_words), n_rows(s.row_end - s.row_begin), prefix(s.prefix) {}

  //! Number of cache slots that the sequence has after this pass.
  ESPALIER_HOST_DEVICE std::int32_t n_slots() const { return prefix + n_rows; }

  //! True if the row sees the cache slot. Rows from n_rows on are padding: they see the committed slots and the first
  //! row, so that no softmax has an empty range.
  ESPALIER_HOST_DEVICE bool sees(std::int32_t row, std::int32_t slot) const {
    const std::int32_t column = slot - prefix;
    if (column < 0) return true;
    if (row >= n_rows) return column == 0;
    return (word(row, column / 32) >> (column % 32) & 1U) != 0;
  }

  //! The parent of a row: the last row before it that the row sees, or -1.
  //!
  //! Complexity  O(row / 32)
  ESPALIER_HOST_DEVICE std::int32_t parent(std::int32_t row) const {
    for (std::int32_t w = row / 32; w >= 0; --w) {
      std::uint32_t bits = word(row, w);
      if (w == row / 32) bits &= (1U << (row % 32)) - 1U;
      if (bits != 0) return w * 32 + highest_bit(bits);
    }
    return -1;
  }

  //! Number of columns up to the last one that the row sees.
  //!
  //! Complexity  O(n_words)
  ESPALIER_HOST_DEVICE std::int32_t n_columns(std::int32_t row) const {
    for (std::int32_t w = n_words - 1; w >= 0; --w) {
      if (word(row, w) != 0) return w * 32 + highest_bit(word(row, w)) + 1;
    }
    return 0;
  }

  //! The mask bits of 32 columns of a row; 0 if the row or the word does not exist.
  ESPALIER_HOST_DEVICE std::uint32_t word(std::int32_t row, std::int32_t w) const {
    return row < n_rows && w < n_words ? words[static_cast<std::int64_t>(row) * n_words + w] : 0U;
  }

 private:
  ESPALIER_HOST_DEVICE static std::int32_t highest_bit(std::uint32_t bits) {
    std::int32_t highest = 0;
    for (std::int32_t step = 16; step > 0; step /= 2) {
      if (bits >> (highest + step) != 0) highest += step;
    }
    return highest;
  }
};

//! The index of the sequence that a batch row belongs to; a padding row belongs to the last sequence.
//!
//! Complexity  O(log n_sequences)
//! Pre         0 <= row, sequences in the order of their rows
ESPALIER_HOST_DEVICE inline std::int32_t sequence_at(const batch_sequence* sequences, std::int32_t n_sequences,
                                                     std::int32_t row) {
  std::int32_t low = 0, high = n_sequences;
  while (high - low > 1) {
    const std::int32_t middle = low + (high - low) / 2;
    (sequences[middle].row_begin <= row ? low : high) = middle;
  }
  return low;
}

}  // namespace espalier::interop
