// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/block_draft_model.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "espalier/core/forward_batch_view.hpp"

namespace espalier::detail {

// The sequences and masks of a pass over blocks: what their rows see in layers of one kind. A block has n rows, at the
// positions, and in the slots, from its text's pending token on.
struct block_sight {
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

  // Adds a block whose rows see all of the text before it, and one another; if it is causal, no later row.
  void add(int sequence, int n, int position, bool causal) {
    const int words = (n + 31) / 32, begin = begin_rows(sequence, n, position, words);
    for (int row = 0; row < n; ++row)
      see(begin + row * words, 0, causal ? row + 1 : n);
  }

  // Adds a block whose rows see what lies within a window. before_block: the last `window` tokens before the block, and
  // rows of the block at any distance; else what is less than `window` positions away.
  void add_window(int sequence, int n, int position, bool causal, int window, bool before_block) {
    const int words = (position + n + 31) / 32, begin = begin_rows(sequence, n, 0, words);
    for (int row = 0; row < n; ++row) {
      const int own = position + row, last = causal ? own + 1 : position + n;
      see(begin + row * words, (std::max)(0, before_block ? position - window : own - window + 1),
          before_block ? last : (std::min)(last, own + window));
    }
  }

 private:
  // Begins a sequence of n rows with masks of 0, and returns the number of its first word.
  int begin_rows(int sequence, int n, int prefix, int words) {
    const auto begin = static_cast<std::int32_t>(mask.size());
    sequences.push_back({sequence, sequence * n, (sequence + 1) * n, prefix, begin, words});
    mask.resize(mask.size() + static_cast<std::size_t>(n * words), 0U);
    return begin;
  }

  // Sets bits first to last - 1 of the mask that begins at a word.
  void see(int word, int first, int last) {
    for (int bit = first; bit < last; ++bit)
      mask[static_cast<std::size_t>(word + bit / 32)] |= 1U << (bit % 32);
  }
};

}  // namespace espalier::detail
