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

//! The form of a mask for SGLang's EAGLE kernels. The values are SGLang's own.
enum class sglang_mask_mode : std::int32_t {
  full = 0,                  //!< one byte for each element, prefix and tree
  qlen_only = 1,             //!< one byte for each element, the tree alone
  qlen_only_bitpacking = 2,  //!< a row of the tree in 1, 2 or 4 bytes, least significant bit first
};

//! The layout of SGLang's masks, in which each sequence has n rows. Rows that the batch does not have are padding.
struct sglang_mask_layout {
  sglang_mask_mode mode = sglang_mask_mode::full;
  std::int32_t n = 0;

  //! Number of bytes of a bit-packed row.
  ESPALIER_HOST_DEVICE std::int32_t row_bytes() const { return n <= 8 ? 1 : n <= 16 ? 2 : 4; }
  //! Number of bytes of one sequence.
  ESPALIER_HOST_DEVICE std::int64_t bytes(std::int32_t prefix) const {
    const std::int64_t row = mode == sglang_mask_mode::full        ? static_cast<std::int64_t>(prefix) + n
                             : mode == sglang_mask_mode::qlen_only ? n
                                                                   : row_bytes();
    return n * row;
  }
  //! One byte of a sequence's mask.
  ESPALIER_HOST_DEVICE std::uint8_t byte(const sequence_mask& mask, std::int64_t i) const {
    if (mode == sglang_mask_mode::qlen_only_bitpacking) {
      const auto row = static_cast<std::int32_t>(i / row_bytes());
      const auto first = static_cast<std::int32_t>(i % row_bytes()) * 8;
      unsigned bits = 0;
      for (std::int32_t b = 0; b < 8; ++b)
        bits |= static_cast<unsigned>(mask.sees(row, mask.prefix + first + b)) << b;
      return static_cast<std::uint8_t>(bits);
    }
    const std::int32_t skipped = mode == sglang_mask_mode::full ? 0 : mask.prefix, columns = mask.prefix - skipped + n;
    return mask.sees(static_cast<std::int32_t>(i / columns), skipped + static_cast<std::int32_t>(i % columns)) ? 1 : 0;
  }

  //! Checks the layout.
  //!
  //! Errors      input_error for n outside 1 to 2^15, and for more than 32 rows in bits
  void check() const {
    if (n < 1 || n > 1 << 15) raise<input_error>("SGLang's mask cannot have ", n, " rows.");
    if (mode == sglang_mask_mode::qlen_only_bitpacking && n > 32) {
      raise<input_error>("SGLang's bit-packed mask has room for 32 rows, but ", n,
                         " are wanted: take mode full or qlen_only.");
    }
  }
};

//! Writes SGLang's tree mask of a forward batch. In mode full, the columns of the prefix are written, too, which
//! SGLang's kernels leave to their caller.
//!
//! Shapes      out: sequence after sequence, layout.bytes(prefix) bytes each. full: [n][prefix + n]; qlen_only: [n][n];
//!             bit-packed: [n] words of 1, 2 or 4 bytes
//! Errors      as sglang_mask_layout::check; input_error if a sequence has more rows than n, or out is too small
//! Source      SGLang, build_tree_kernel_efficient, 2026
inline void write_sglang_mask(const forward_batch_view& batch, const sglang_mask_layout& layout,
                              std::span<std::uint8_t> out) {
  layout.check();
  std::int64_t begin = 0;
  for (const batch_sequence& s : batch.sequences) {
    const sequence_mask mask(s, batch.mask.data());
    if (mask.n_rows > layout.n) {
      raise<input_error>("SGLang's mask of ", layout.n, " rows has no room for the ", mask.n_rows, " rows of sequence ",
                         s.sequence, ".");
    }
    const std::int64_t bytes = layout.bytes(mask.prefix);
    detail::require_room("SGLang's mask", out.size(), begin + bytes);
    for (std::int64_t i = 0; i < bytes; ++i)
      out[static_cast<std::size_t>(begin + i)] = layout.byte(mask, i);
    begin += bytes;
  }
}

//! Reads the tree of one sequence from the bytes of its SGLang mask.
//!
//! Shapes      parents [layout.n]: the parent row of each row
//! Errors      as sglang_mask_layout::check; input_error if bytes are missing, parents is too small, a committed column
//!             is hidden, or the rest is the mask of no tree
inline void read_sglang_mask(std::span<const std::uint8_t> in, const sglang_mask_layout& layout, std::int32_t prefix,
                             std::span<node_id> parents) {
  layout.check();
  detail::require_room("SGLang's mask", in.size(), layout.bytes(prefix));
  const std::int32_t n = layout.n, skipped = layout.mode == sglang_mask_mode::full ? prefix : 0;
  const auto byte = [&](std::int32_t row, std::int32_t of_row, std::int32_t i) {
    return in[static_cast<std::size_t>(row) * static_cast<std::size_t>(of_row) + static_cast<std::size_t>(i)];
  };
  for (std::int32_t row = 0; row < n; ++row) {
    for (std::int32_t c = 0; c < skipped; ++c) {
      if (byte(row, skipped + n, c) == 0) {
        raise<input_error>("row ", row, " of the mask does not see the committed column ", c, ".");
      }
    }
  }
  const auto sees = [&](std::int32_t row, std::int32_t c) {
    if (layout.mode == sglang_mask_mode::qlen_only_bitpacking) {
      return (byte(row, layout.row_bytes(), c / 8) >> (c % 8) & 1) != 0;
    }
    return byte(row, skipped + n, skipped + c) != 0;
  };
  read_parents_of_mask(n, sees, parents);
}

}  // namespace espalier::interop
