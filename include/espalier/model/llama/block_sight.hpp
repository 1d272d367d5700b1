// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/block_draft_model.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"

namespace espalier::detail {

// A range of positions, from begin to end - 1.
struct position_range {
  std::int32_t begin;
  std::int32_t end;
};

// The rule by which rows of a block see positions in layers of one kind. A block has n rows, at the positions, and in
// the slots, from its text's pending token on.
struct block_sight {
  bool causal = false;               // a row sees no later row of its block
  std::int32_t window = 0;           // 0: a row sees all of the text before its block
  bool window_before_block = false;  // a row sees the last `window` tokens before the block, and rows of the block at
                                     // any distance; else what is less than `window` positions from itself

  // Returns the positions that a row of a block at this position sees; its own is one of them.
  ESPALIER_HOST_DEVICE position_range of(std::int32_t position, std::int32_t n, std::int32_t row) const {
    const std::int32_t own = position + row, last = causal ? own + 1 : position + n;
    if (window == 0) return {0, last};
    const std::int32_t first = window_before_block ? position - window : own - window + 1;
    return {first > 0 ? first : 0, window_before_block || last < own + window ? last : own + window};
  }
};

// The sequences and masks of a pass over blocks, in layers of one kind.
struct block_masks {
  std::vector<batch_sequence> sequences;
  std::vector<std::uint32_t> mask;

  // Takes memory for n_texts blocks of `rows` rows, whose rows see any of so many slots; 0: all slots before the block,
  // and any of its rows.
  void reserve(int n_texts, int rows, int slots) {
    const auto words = static_cast<std::size_t>(((std::max)(slots, rows) + 31) / 32);
    sequences.reserve(static_cast<std::size_t>(n_texts));
    mask.reserve(static_cast<std::size_t>(n_texts) * static_cast<std::size_t>(rows) * words);
  }

  void clear() { sequences.clear(), mask.clear(); }

  // Adds a block of n rows at this position.
  void add(int sequence, int n, int position, const block_sight& sight) {
    const int prefix = sight.window > 0 ? 0 : position, words = (position - prefix + n + 31) / 32;
    const auto begin = static_cast<std::int32_t>(mask.size());
    sequences.push_back({sequence, sequence * n, (sequence + 1) * n, prefix, begin, words});
    mask.resize(mask.size() + static_cast<std::size_t>(n * words), 0U);
    for (int row = 0; row < n; ++row) {
      const position_range seen = sight.of(position, n, row);
      for (int bit = (std::max)(0, seen.begin - prefix); bit < seen.end - prefix; ++bit)
        mask[static_cast<std::size_t>(begin + row * words + bit / 32)] |= 1U << (bit % 32);
    }
  }
};

}  // namespace espalier::detail
