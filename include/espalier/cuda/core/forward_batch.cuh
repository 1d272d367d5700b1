// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"

namespace espalier::cuda {

//! What a backend is asked to compute, in the memory of the device: the host knows the shapes of what may be there, the
//! device what is there. By value into kernels.
//!
//! Row r of sequence s, i = r - s.row_begin, sees cache slots 0 to s.prefix - 1, and slot s.prefix + j where bit j of
//! its mask row is set (bit j % 32 of mask[s.mask_begin + i * s.mask_words + j / 32]): itself, too. Keys and values of
//! the row go to slots[r] before attention. Rows that belong to no sequence are padding: token 0, position 0, slot -1
//! (no keys, no values); what comes out of them is not looked at.
//!
//! Shapes      tokens, positions, slots, sequence_of: [n_rows]; sequences: [n_sequences], rows in order; mask: all
//!             rows' words; outputs [n_outputs]: batch rows whose logits are wanted, -1 for an output that nobody looks
//!             at; nullptr: the rows themselves, in order
struct forward_batch_view {
  std::int32_t n_rows = 0;  //!< padding included: what kernels are launched for
  std::int32_t n_sequences = 0;
  std::int32_t n_outputs = 0;
  std::int32_t max_context = 0;  //!< no row sees more slots: bounds the work of attention
  const token_id* tokens = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int32_t* slots = nullptr;
  const std::int32_t* sequence_of = nullptr;  //!< index into sequences; -1 for padding
  const batch_sequence* sequences = nullptr;
  const std::uint32_t* mask = nullptr;
  const std::int32_t* outputs = nullptr;
};

}  // namespace espalier::cuda
