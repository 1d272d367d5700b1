// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/llama_backend.cpp
#pragma once

#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"

namespace espalier::detail {

// The limits of a model and its cache, which every forward batch must respect.
struct batch_limits {
  int max_rows;
  int vocab_size;
  int max_positions;
  int capacity;  // slots of one sequence in the cache
};

// Checks that each sequence of the batch exists in the store, and, if the store tells its number of layers and its row
// size, that these are the model's: a model would write beyond the end of a store that was made for another model.
//
// Errors      input_error that names both shapes; the store's own error for a sequence that does not exist
template <class KVStoreT>
void check_store(const KVStoreT& kv, const forward_batch_view& batch, int n_layers, int row_size) {
  if constexpr (requires { kv.n_layers() == kv.row_size(); }) {
    if (kv.n_layers() != n_layers || kv.row_size() != row_size) {
      raise<input_error>("the cache has ", kv.n_layers(), " layers of ", kv.row_size(), " floats a row, but the model ",
                         n_layers, " of ", row_size, ".");
    }
  }
  // size() of a sequence that does not exist raises the store's own error.
  for (const batch_sequence& s : batch.sequences)
    kv.size(s.sequence);
}

// Checks where the mask of one sequence ends, and the token, position, slot and mask of each of its rows.
//
// Errors      input_error that names the row or the sequence that is wrong, and what is allowed
inline void check_sequence(const forward_batch_view& batch, const batch_sequence& s, const batch_limits& limits) {
  const std::int64_t mask_end =
      s.mask_begin + static_cast<std::int64_t>(s.row_end - s.row_begin) * static_cast<std::int64_t>(s.mask_words);
  if (s.prefix < 0 || s.mask_words < 0 || s.mask_begin < 0 || mask_end > static_cast<std::int64_t>(batch.mask.size())) {
    raise<input_error>("the mask of sequence ", s.sequence, " ends at word ", mask_end, " of ", batch.mask.size(), ".");
  }
  for (std::int32_t row = s.row_begin; row < s.row_end; ++row) {
    const auto r = static_cast<std::size_t>(row);
    if (batch.tokens[r] < 0 || batch.tokens[r] >= limits.vocab_size) {
      raise<input_error>("row ", row, " has token ", batch.tokens[r], ", but the vocabulary has ", limits.vocab_size,
                         " entries.");
    }
    if (batch.positions[r] < 0 || batch.positions[r] >= limits.max_positions) {
      raise<input_error>("row ", row, " has position ", batch.positions[r], ", but the model has ",
                         limits.max_positions, " positions.");
    }
    const std::int32_t column = batch.slots[r] - s.prefix;
    if (column < 0 || batch.slots[r] >= limits.capacity) {
      raise<input_error>("row ", row, " has cache slot ", batch.slots[r], ", but must have one from ", s.prefix, " to ",
                         limits.capacity - 1, ".");
    }
    const std::span<const std::uint32_t> mask = batch.mask_of(s, row);
    if (column / 32 >= s.mask_words || (mask[static_cast<std::size_t>(column / 32)] >> (column % 32) & 1U) == 0) {
      raise<input_error>("row ", row, " does not see itself: bit ", column, " of its mask is not set.");
    }
    for (std::int32_t beyond = limits.capacity - s.prefix; beyond < 32 * s.mask_words; ++beyond) {
      if ((mask[static_cast<std::size_t>(beyond / 32)] >> (beyond % 32) & 1U) != 0) {
        raise<input_error>("row ", row, " sees cache slot ", s.prefix + beyond, ", but there are ", limits.capacity,
                           ".");
      }
    }
  }
}

// Checks a whole batch: its number of rows, the lengths of its arrays, the order of its outputs, and every row's token,
// position, slot and mask.
//
// Errors      input_error that names the row, the sequence or the array that is wrong, and what is allowed
inline void check_batch(const forward_batch_view& batch, const batch_limits& limits) {
  const std::int32_t n = batch.n_rows();
  if (n > limits.max_rows) {
    raise<input_error>("a batch has ", n, " rows, but the backend was built for at most ", limits.max_rows,
                       " (option max_rows).");
  }
  if (batch.positions.size() != batch.tokens.size() || batch.slots.size() != batch.tokens.size()) {
    raise<input_error>("a batch has ", n, " tokens, ", batch.positions.size(), " positions and ", batch.slots.size(),
                       " slots.");
  }
  std::int32_t row = 0;
  for (const batch_sequence& s : batch.sequences) {
    if (s.row_begin != row || s.row_end < row || s.row_end > n) {
      raise<input_error>("sequence ", s.sequence, " has rows ", s.row_begin, " to ", s.row_end, ", but must begin at ",
                         row, " and end within ", n, ".");
    }
    row = s.row_end;
    check_sequence(batch, s, limits);
  }
  if (row != n) raise<input_error>("a batch has ", n, " rows, but its sequences have ", row, ".");
  std::int32_t last = -1;
  for (const std::int32_t output : batch.outputs) {
    if (output <= last || output >= n) {
      raise<input_error>("logits of row ", output, " are asked for after row ", last, " of ", n,
                         ", but outputs must ascend.");
    }
    last = output;
  }
}

}  // namespace espalier::detail
