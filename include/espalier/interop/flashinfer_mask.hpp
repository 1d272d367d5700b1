// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/interop/row_parents.hpp"
#include "espalier/interop/sequence_mask.hpp"

namespace espalier::interop {

//! Number of bytes of one sequence in FlashInfer's packed custom mask: a bit for each of n_rows rows and each of prefix
//! + n_rows slots.
ESPALIER_HOST_DEVICE inline std::int64_t flashinfer_mask_bytes(std::int32_t n_rows, std::int32_t prefix) {
  return (static_cast<std::int64_t>(n_rows) * (static_cast<std::int64_t>(prefix) + n_rows) + 7) / 8;
}

//! One byte of FlashInfer's packed custom mask of a sequence.
ESPALIER_HOST_DEVICE inline std::uint8_t flashinfer_mask_byte(const sequence_mask& mask, std::int64_t byte) {
  const std::int32_t slots = mask.n_slots();
  auto row = static_cast<std::int32_t>(byte * 8 / slots);
  auto slot = static_cast<std::int32_t>(byte * 8 % slots);
  if (slot + 8 <= mask.prefix) return 0xFF;
  unsigned bits = 0;
  for (unsigned bit = 0; bit < 8 && row < mask.n_rows; ++bit) {
    if (mask.sees(row, slot)) bits |= 1U << bit;
    if (++slot == slots) {
      slot = 0;
      ++row;
    }
  }
  return static_cast<std::uint8_t>(bits);
}

//! Writes FlashInfer's packed custom mask of a forward batch, for its ragged or paged prefill. Bit q * slots + k of a
//! sequence is set if its row q sees slot k; least significant bit first, no padding between rows.
//!
//! Shapes      indptr [n_sequences + 1], in bytes: each sequence begins at a byte; packed [indptr[n_sequences]]
//! Complexity  O(rows * slots)
//! Errors      input_error if packed or indptr is too small, or the masks of all sequences take 2^31 bytes or more
//! Source      FlashInfer, custom_mask with packbits(..., bitorder="little"), 2026
inline void write_flashinfer_mask(const forward_batch_view& batch, std::span<std::uint8_t> packed,
                                  std::span<std::int32_t> indptr) {
  detail::require_room("mask_indptr", indptr.size(), static_cast<std::int64_t>(batch.sequences.size()) + 1);
  std::int64_t begin = 0;
  indptr[0] = 0;
  for (std::size_t i = 0; i < batch.sequences.size(); ++i) {
    const sequence_mask mask(batch.sequences[i], batch.mask.data());
    const std::int64_t bytes = flashinfer_mask_bytes(mask.n_rows, mask.prefix);
    detail::require_room("FlashInfer's packed mask", packed.size(), begin + bytes);
    for (std::int64_t b = 0; b < bytes; ++b)
      packed[static_cast<std::size_t>(begin + b)] = flashinfer_mask_byte(mask, b);
    begin += bytes;
    if (begin > INT32_MAX)
      raise<input_error>("FlashInfer's packed mask would take ", begin, " bytes, more than mask_indptr can say.");
    indptr[i + 1] = static_cast<std::int32_t>(begin);
  }
}

//! Reads the tree of one sequence, of n rows after `prefix` committed slots, from the bytes of its FlashInfer mask.
//!
//! Shapes      parents [n]: the parent row of each row
//! Errors      input_error if bytes are missing, parents is too small, a committed slot is hidden, a bit beyond the
//!             mask is set, or the rest is the mask of no tree
inline void read_flashinfer_mask(std::span<const std::uint8_t> packed, std::int32_t n, std::int32_t prefix,
                                 std::span<node_id> parents) {
  const std::int64_t bytes = flashinfer_mask_bytes(n, prefix);
  detail::require_room("FlashInfer's packed mask", packed.size(), bytes);
  const auto test = [&](std::int64_t bit) { return (packed[static_cast<std::size_t>(bit / 8)] >> (bit % 8) & 1) != 0; };
  const std::int64_t slots = static_cast<std::int64_t>(prefix) + n;
  for (std::int32_t row = 0; row < n; ++row) {
    for (std::int32_t k = 0; k < prefix; ++k) {
      if (!test(row * slots + k))
        raise<input_error>("row ", row, " of the mask does not see the committed slot ", k, ".");
    }
  }
  for (std::int64_t bit = n * slots; bit < bytes * 8; ++bit) {
    if (test(bit)) raise<input_error>("bit ", bit, " of the mask is set, but it has ", n * slots, " bits.");
  }
  read_parents_of_mask(
      n, [&](std::int32_t row, std::int32_t c) { return test(row * slots + prefix + c); }, parents);
}

//! Writes FlashInfer's mask for its XQA kernels: for each row of the tree, which rows of the tree it sees, without the
//! committed slots. The bits are in 16-bit halves of 32-bit words, least significant bit and half first.
//!
//! Shapes      out [n_sequences][n][mask words of n, times 2]; n is at least the number of rows of each sequence;
//!             further rows are empty
//! Errors      input_error if a sequence has more rows than n, or out is too small
inline void write_xqa_mask(const forward_batch_view& batch, std::int32_t n, std::span<std::uint16_t> out) {
  const std::int32_t halves = (n + 31) / 32 * 2;
  detail::require_room("the XQA mask", out.size(), static_cast<std::int64_t>(batch.sequences.size()) * n * halves);
  std::size_t at = 0;
  for (const batch_sequence& s : batch.sequences) {
    const sequence_mask mask(s, batch.mask.data());
    if (mask.n_rows > n) {
      raise<input_error>("the XQA mask of ", n, " rows has no room for the ", mask.n_rows, " rows of sequence ",
                         s.sequence, ".");
    }
    for (std::int32_t row = 0; row < n; ++row) {
      for (std::int32_t h = 0; h < halves; ++h) {
        unsigned bits = 0;
        for (std::int32_t b = 0; b < 16 && row < mask.n_rows; ++b)
          bits |= static_cast<unsigned>(mask.sees(row, mask.prefix + 16 * h + b)) << b;
        out[at++] = static_cast<std::uint16_t>(bits);
      }
    }
  }
}

}  // namespace espalier::interop
