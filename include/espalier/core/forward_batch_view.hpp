// SPDX-License-Identifier: BSL-1.0
// Tested by tests/core/forward_batch.cpp
#pragma once

#include <cstdint>
#include <span>

#include "espalier/core/token.hpp"

namespace espalier {

//! The rows of one sequence inside a forward batch.
struct batch_sequence {
  std::int32_t sequence = 0;    //!< number of the sequence in the KV store
  std::int32_t row_begin = 0;   //!< first batch row of the sequence
  std::int32_t row_end = 0;     //!< one past the last batch row of the sequence
  std::int32_t prefix = 0;      //!< number of committed rows in the cache; every batch row sees all of them
  std::int32_t mask_begin = 0;  //!< index in `mask` of the first mask word of these batch rows
  std::int32_t mask_words = 0;  //!< number of mask words of each of these batch rows
};

//! The work that a backend is asked for: tokens with their positions, cache slots and masks, ragged over sequences.
//!
//! Row r of sequence s sees the cache slots 0 to s.prefix - 1, and slot s.prefix + j if bit j of its mask row is set.
//! With i = r - s.row_begin this is bit j % 32 of mask[s.mask_begin + i * s.mask_words + j / 32]. Every row sees its
//! own slot, slots[r], where its keys and values are written before attention reads them.
//!
//! Shapes      tokens, positions, slots: [n_rows]; sequences: [n_sequences], rows contiguous and in order;
//!             mask: all rows' words; outputs: [n_outputs], ascending batch rows whose logits are wanted
struct forward_batch_view {
  std::span<const token_id> tokens;
  std::span<const std::int32_t> positions;
  std::span<const std::int32_t> slots;
  std::span<const batch_sequence> sequences;
  std::span<const std::uint32_t> mask;
  std::span<const std::int32_t> outputs;

  std::int32_t n_rows() const { return static_cast<std::int32_t>(tokens.size()); }

  //! The mask words of batch row r, which belongs to sequence s: [mask_words].
  std::span<const std::uint32_t> mask_of(const batch_sequence& s, std::int32_t r) const {
    return mask.subspan(static_cast<std::size_t>(s.mask_begin + (r - s.row_begin) * s.mask_words),
                        static_cast<std::size_t>(s.mask_words));
  }
};

}  // namespace espalier
