// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/option.hpp"
#include "espalier/kv_store/contiguous.hpp"

namespace espalier {

struct sink_window_options {
  int sinks = 4;      //!< number of first tokens of a text that stay
  int window = 1024;  //!< number of last tokens that stay when the window slides
  int block = 256;    //!< number of tokens by which it slides
  int scratch = 256;  //!< number of rows of a round beside those it commits: as many as the policy drafts
  commit_mode commit = commit_mode::compact;

  static constexpr void describe(auto see) {
    see(option{"sinks", &sink_window_options::sinks, "first tokens of a text, which stay", 0, 1 << 20});
    see(option{"window", &sink_window_options::window, "last tokens, which stay when the window slides", 1, 1 << 28});
    see(option{"block", &sink_window_options::block, "tokens by which the window slides", 1, 1 << 28});
    see(option{"scratch", &sink_window_options::scratch, "rows of a round beside what it commits", 0, 1 << 20});
    see(option{"commit", &sink_window_options::commit, "what is done with accepted cache rows"});
  }
};

//! A turner that does nothing, for keys that do not depend on their position.
struct no_turner {
  void operator()(int, std::span<float>, int) const {}
};

//! The cache of a text without end (StreamingLLM), in constant memory: its first tokens, to which attention falls back
//! (sinks), and a window of its last ones. Once sinks + window + block rows are committed, the oldest `block` rows
//! after the sinks are dropped, and the rows after them move down by as many slots.
//!
//!     sink_window_kv kv(config.n_layers, config.kv_size(), 1, {.sinks = 4, .window = 1024}, key_turner(config));
//!
//! The position of a row is the number of its slot. When rows move down, turner(layer, key, n) changes one row of keys
//! from its position to the position n lower (key_turner does that for llama_backend). The backend needs capacity()
//! positions, whatever the length of the text.
//!
//! Shapes      key(layer, sequence, slot), value(...): [row_size] floats, row_size = n_kv_heads * head_dim, slot 0 to
//!             capacity - 1, capacity = sinks + window + block + scratch
//! Complexity  commit: as contiguous_kv, and once in `block` tokens O(layers * row_size * window) and a call of turner
//!             for each layer and moved row; no allocation
//! Law         as WindowedKVStore. Whatever is drafted, the text is the one that plain decoding over this cache gives.
//!             A cache that holds the whole text would give another one: here each token sees only the sinks and a
//!             window, though their rows may have been computed from tokens that were dropped later
//! Errors      option_error for sizes out of range; otherwise as slot_ledger
//! Source      Xiao et al., Efficient streaming language models with attention sinks (2023). Deviation: the window
//!             slides by blocks, and keys are stored turned, not turned at each pass
template <std::invocable<int, std::span<float>, int> TurnerT = no_turner>
class sink_window_kv {
 public:
  sink_window_kv(int n_layers, int row_size, int n_sequences, const sink_window_options& options = {},
                 TurnerT turner = {})
      : options_(require_options(options)),
        rows_(n_layers, row_size, n_sequences, most_held() + options.scratch, options.commit),
        dropped_(static_cast<std::size_t>(n_sequences), 0),
        turner_(std::move(turner)) {}

  int n_layers() const { return rows_.n_layers(); }
  int row_size() const { return rows_.row_size(); }
  int n_sequences() const { return rows_.n_sequences(); }
  int capacity() const { return rows_.capacity(); }
  bool compacts() const { return rows_.compacts(); }
  const sink_window_options& options() const { return options_; }

  int size(int sequence) const {
    const int n = held(sequence);  // first, since it checks the sequence
    return n + dropped_[static_cast<std::size_t>(sequence)];
  }
  int held(int sequence) const { return rows_.size(sequence); }
  int until_slide(int sequence) const { return most_held() - held(sequence); }
  int scratch() const { return options_.scratch; }

  int append(int sequence, int n) { return rows_.append(sequence, n); }
  int commit(int sequence, std::span<const std::int32_t> kept) {
    const int before = held(sequence), most = until_slide(sequence);
    const int n = (std::min)(rows_.commit(sequence, kept), most);
    rows_.truncate(sequence, before + n);
    if (n == most) slide(sequence);
    return n;
  }
  void truncate(int sequence, int n) {
    const int n_less = (std::max)(0, size(sequence) - (std::max)(0, n)), left = held(sequence) - n_less;
    int& dropped = dropped_[static_cast<std::size_t>(sequence)];
    const bool is_gone = dropped > 0 && n_less > 0 && left < options_.sinks + options_.window;
    rows_.truncate(sequence, is_gone ? 0 : left);
    if (is_gone) dropped = 0;
  }

  //! The keys, and the values, in one slot: [row_size]. The pointer is valid as long as the store lives; a commit may
  //! move the numbers to another slot.
  //!
  //! Pre         layer, sequence and slot exist
  float* key(int layer, int sequence, int slot) { return rows_.key(layer, sequence, slot); }
  float* value(int layer, int sequence, int slot) { return rows_.value(layer, sequence, slot); }

 private:
  int most_held() const { return options_.sinks + options_.window + options_.block; }

  void slide(int sequence) {
    const int n = options_.block, end = most_held();
    for (int slot = options_.sinks + n; slot < end; ++slot) {
      detail::move_keys_and_values(rows_, sequence, slot, slot - n);
      for (int layer = 0; layer < n_layers(); ++layer)
        turner_(layer, std::span(key(layer, sequence, slot - n), static_cast<std::size_t>(row_size())), n);
    }
    rows_.truncate(sequence, end - n);
    dropped_[static_cast<std::size_t>(sequence)] += n;
  }

  sink_window_options options_;
  contiguous_kv rows_;
  std::vector<int> dropped_;  // [n_sequences] number of rows that were dropped
  TurnerT turner_;
};

static_assert(WindowedKVStore<sink_window_kv<>>);

}  // namespace espalier
