// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/core/tree_compile.cu
#pragma once

#include <cstdint>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"

namespace espalier::cuda {

//! A pass that a backend is asked to compute, in the memory of the device. The host knows the shapes, the device alone
//! the contents. Passed by value into kernels.
//!
//! Batch row r of a sequence s is the sequence's row i = r - s.row_begin. It sees cache slots 0 to s.prefix - 1, and
//! slot s.prefix + j if bit j of its mask row is set: bit j % 32 of mask[s.mask_begin + i * s.mask_words + j / 32]. It
//! sees itself, too. Keys and values of the row go to slots[r] before attention. Rows that belong to no sequence are
//! padding: token 0, position 0, slot -1 (no keys, no values); nobody reads their logits.
//!
//! Shapes      tokens, positions, slots, sequence_of: [n_rows]; sequences: [n_sequences], in the order of their rows;
//!             mask: the words of all rows; outputs [n_outputs]: batch rows whose logits are wanted, -1 for an output
//!             that nobody reads; if it is nullptr, the logits of all rows are wanted, in order
struct forward_batch_view {
  std::int32_t n_rows = 0;  //!< rows that kernels are launched for, padding included
  std::int32_t n_sequences = 0;
  std::int32_t n_outputs = 0;
  std::int32_t max_context = 0;  //!< upper bound of the number of slots that a row sees: bounds the work of attention
  const token_id* tokens = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int32_t* slots = nullptr;
  const std::int32_t* sequence_of = nullptr;  //!< index into sequences; -1 for padding
  const batch_sequence* sequences = nullptr;
  const std::uint32_t* mask = nullptr;
  const std::int32_t* outputs = nullptr;
};

}  // namespace espalier::cuda
