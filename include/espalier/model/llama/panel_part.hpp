// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/weight_matrix.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/files/weight_type.hpp"
#include "espalier/model/llama/panel_layout.hpp"
#include "espalier/model/llama/simd.hpp"

namespace espalier::detail {

// A few blocks of a panel of codes, with their scales and offsets as floats, for products with the weights as floats.
class panel_part {
 public:
  static constexpr int max_blocks = 4;
  static constexpr int inputs = max_blocks * panel_layout::block;

  // Reads blocks first_block to first_block + n - 1.
  //
  // Pre         the layout is not of numbers (F16, BF16); n <= max_blocks
  panel_part(const panel_layout& layout, const std::byte* panel, int first_block, int n)
      : n_blocks(n),
        nibbles(layout.nibbles),
        signed_codes(layout.signed_codes),
        has_offset(has_offsets(layout.type)),
        halves(layout.halves),
        zero(layout.zero()),
        block_bytes_(layout.block_bytes) {
    for (int b = 0; b < n; ++b) {
      const std::byte *header = panel + layout.header_at(first_block + b),
                      *block = panel + layout.block_at(first_block + b);
      codes[b] = block + layout.scale_bytes;
      for (int lane = 0; lane < panel_layout::outputs; lane += simd_lanes)
        prepare_lanes(layout.type, header, block, lane, b);
    }
  }

  // Returns the scales of the first or the second half of a block, [32].
  const float* scales(int b, int half) const { return scale_[b][half & (halves - 1)]; }
  // Returns the offsets of a half of a block, [32]; -0 if the type has none.
  const float* offsets(int b, int half = 0) const { return offset_[b][has_offset ? half & (halves - 1) : 0]; }

  // Fetches, into the cache, a block's length of memory 8 KiB beyond block b: the hardware's own prefetch does not
  // reach far enough and takes few lines at once. Without always_inline GCC drops the call as one without effect.
  [[gnu::always_inline]] void fetch_ahead(int b) const {
    constexpr std::size_t distance = 1 << 13;
    for (std::size_t byte = 0; byte < block_bytes_; byte += 64)
      __builtin_prefetch(codes[b] + distance + byte, 0, 2);
  }

  const std::byte* codes[max_blocks];
  int n_blocks;
  bool nibbles;
  bool signed_codes;
  bool has_offset;
  int halves;  // parts of a block that have scales of their own: 1 or 2
  int zero;    // number that was added to each integer to make its code

 private:
  void prepare_lanes(weight_type type, const std::byte* header, const std::byte* block, int lane, int b) {
    // Adding -0 leaves every bit of a product as it is.
    simd_float offset = simd_broadcast(-0.0F);
    if (type == weight_type::i8_rows) {
      std::memcpy(scale_[b][0] + lane, header + 4 * lane, sizeof(simd_float));
    } else if (has_steps(type)) {
      const simd_float unit = simd_from_f16(header + 2 * lane);
      simd_store(scale_[b][0] + lane, unit * simd_from_int8(block + lane));
      if (halves == 2) simd_store(scale_[b][1] + lane, unit * simd_from_int8(block + 32 + lane));
      if (has_offset) {
        const simd_float offset_unit = simd_from_f16(header + 64 + 2 * lane);
        offset = offset_unit * simd_from_int8(block + 32 * halves + lane);
        if (halves == 2) simd_store(offset_[b][1] + lane, offset_unit * simd_from_int8(block + 96 + lane));
      }
    } else if (type == weight_type::mxfp4) {
      simd_store(scale_[b][0] + lane, simd_from_bf16(block + 2 * lane));
    } else {
      simd_store(scale_[b][0] + lane, simd_from_f16(block + 2 * lane));
      if (has_offset) offset = simd_from_f16(block + 64 + 2 * lane);
    }
    simd_store(offset_[b][0] + lane, offset);
  }

  std::size_t block_bytes_;
  alignas(64) float scale_[max_blocks][2][panel_layout::outputs];
  alignas(64) float offset_[max_blocks][2][panel_layout::outputs];
};

}  // namespace espalier::detail
