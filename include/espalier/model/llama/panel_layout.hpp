// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/weight_matrix.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "espalier/model/files/weight_row.hpp"
#include "espalier/model/files/weight_type.hpp"

namespace espalier::detail {

constexpr bool has_steps(weight_type type) {
  return type >= weight_type::q2_k;
}

// The layout of a panel, which is the same for every processor. A panel holds the weights of 32 outputs, by blocks of
// 32 inputs, so that a vector of memory has the same inputs of several outputs. A weight's code is its integer or, if
// it has less than 8 bits, its integer plus zero(), which is not negative.
//
//   header  in front of every eight blocks. Types with steps: the F16 units of scales and of offsets, [2][32];
//           i8_rows: F32 scales of rows [32], only in front of the first block; others: nothing
//   block   scales, then codes
//   scales  types with steps: int8 steps of scales [halves][32] and, if the type has offsets, of offsets [halves][32],
//           but at least 64 bytes; i8_rows: nothing; others: F16 scales [32] (mxfp4: BF16) and, if the type has
//           offsets, F16 offsets [32]
//   codes   up to 4 bits: [4][32][4], vector v has inputs 4 v to 4 v + 3 in low halves, 16 + 4 v to 16 + 4 v + 3 in
//           high halves; others: a byte each, [8][32][4], vector v has inputs 4 v to 4 v + 3
//
// F16 and BF16 have no blocks: [inputs][32].
struct panel_layout {
  static constexpr int outputs = 32, block = 32, header_blocks = 8;
  static constexpr std::size_t vector_bytes = 128;

  constexpr panel_layout(weight_type weights, int n)
      : type(weights),
        inputs(n),
        blocks((n + block - 1) / block),
        numbers(type < weight_type::i8_rows),
        halves(block / run_weights(type)),
        nibbles(type == weight_type::q4_0 || type == weight_type::q4_1 || type == weight_type::q2_k ||
                type == weight_type::q3_k || type == weight_type::q4_k),
        signed_codes(type == weight_type::i8_rows || type == weight_type::q8_0 || type == weight_type::iq4_nl ||
                     type == weight_type::iq4_xs || type == weight_type::mxfp4),
        header_bytes(has_steps(type) || type == weight_type::i8_rows ? 128 : 0),
        scale_bytes(type == weight_type::i8_rows                             ? 0
                    : has_offsets(type) && (!has_steps(type) || halves == 2) ? 128
                                                                             : 64),
        block_bytes(scale_bytes + vector_bytes * (nibbles ? 4 : 8)) {}

  constexpr std::size_t bytes() const {
    if (numbers) return static_cast<std::size_t>(inputs) * outputs * 2;
    return block_at(blocks - 1) + block_bytes;
  }

  constexpr int zero() const {
    if (has_offsets(type)) return 0;
    if (type == weight_type::q4_0) return 8;
    if (type == weight_type::q5_0) return 16;
    if (type == weight_type::q3_k) return 4;
    return type == weight_type::q6_k ? 32 : 0;
  }

  constexpr std::size_t header_at(int b) const {
    if (type == weight_type::i8_rows) return 0;
    return static_cast<std::size_t>(b / header_blocks) * (header_bytes + header_blocks * block_bytes);
  }
  constexpr std::size_t block_at(int b) const {
    const std::size_t headers = type == weight_type::i8_rows ? 1 : static_cast<std::size_t>(b / header_blocks + 1);
    return headers * header_bytes + static_cast<std::size_t>(b) * block_bytes;
  }

  // Writes the weights of output `lane` of the panel, a row of the panel's type.
  void set_row(std::byte* panel, int lane, const weight_row& row) const {
    if (numbers) {
      for (int i = 0; i < inputs; ++i)
        std::memcpy(panel + 2 * (i * outputs + lane), row.bytes.data() + 2 * i, 2);
      return;
    }
    const int run = run_weights(type);
    for (int b = 0; b < blocks; ++b) {
      std::byte* at = panel + block_at(b);
      std::uint8_t codes[block];
      for (int half = 0; half < halves; ++half) {
        const weight_run weights = run_of(row, block * b + run * half);
        set_scales(panel + header_at(b), at, lane, half, weights, row.scale);
        for (int i = 0; i < run; ++i)
          codes[run * half + i] = static_cast<std::uint8_t>(weights.q[i] + zero());
      }
      at += scale_bytes + 4 * static_cast<std::size_t>(lane);
      for (int i = 0; nibbles && i < 16; ++i)
        codes[i] = static_cast<std::uint8_t>(codes[i] | codes[i + 16] << 4);
      for (int i = 0; i < (nibbles ? 16 : block); i += 4)
        std::memcpy(at + vector_bytes * static_cast<std::size_t>(i / 4), codes + i, 4);
    }
  }

  weight_type type;
  int inputs, blocks;
  bool numbers;       // F16 or BF16
  int halves;         // parts of a block that have scales of their own: 1 or 2
  bool nibbles;       // codes have 4 bits
  bool signed_codes;  // codes have 8 bits and a sign
  std::size_t header_bytes, scale_bytes, block_bytes;

 private:
  weight_run run_of(const weight_row& row, int first) const {
    if (type != weight_type::i8_rows) {
      const int in_block = block_weights(type);
      return unpack_run(type, row.bytes.data() + first / in_block * espalier::block_bytes(type),
                        first % in_block / run_weights(type));
    }
    weight_run run;
    std::memcpy(run.q, row.bytes.data() + first, static_cast<std::size_t>((std::min)(block, inputs - first)));
    return run;
  }

  void set_scales(std::byte* header, std::byte* scales, int lane, int half, const weight_run& run,
                  float scale_of_row) const {
    const auto put = [](std::byte* to, auto value) { std::memcpy(to, &value, sizeof value); };
    if (type == weight_type::i8_rows) {
      put(header + 4 * lane, scale_of_row);
    } else if (has_steps(type)) {
      put(header + 2 * lane, run.scale_unit);
      put(header + 64 + 2 * lane, run.offset_unit);
      put(scales + 32 * half + lane, run.scale_step);
      if (has_offsets(type)) put(scales + 32 * (halves + half) + lane, run.offset_step);
    } else {
      put(scales + 2 * lane, run.scale_unit);
      if (has_offsets(type)) put(scales + 64 + 2 * lane, run.offset_unit);
    }
  }
};

}  // namespace espalier::detail
