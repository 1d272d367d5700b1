// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"

namespace espalier {

//! How a store commits a path that is not simply the first of its scratch rows.
enum class commit_mode {
  compact,   //!< moves the kept rows together, in place
  truncate,  //!< keeps the longest leading run; the rest is forwarded again with the next round
};

//! Keys and values of every layer in one block of memory, each sequence with room for `capacity` rows.
//!
//! Shapes      key(layer, sequence, slot), value(...): [row_size] floats, row_size = n_kv_heads * head_dim
//! Complexity  commit: O(layers * row_size * rows moved), nothing where the path is the leading run; no allocation
//! Law         KVStore's; key() and value() of different slots may be used from several threads at once
//! Errors      option_error for sizes below 1; input_error for a sequence that is not there, a negative count, or
//!             kept rows that do not ascend within the scratch rows
class contiguous_kv {
 public:
  contiguous_kv(int n_layers, int row_size, int n_sequences, int capacity, commit_mode mode = commit_mode::compact)
      : n_layers_(n_layers), row_size_(row_size), capacity_(capacity), mode_(mode) {
    constexpr int most = 1 << 28;
    require_option("n_layers", n_layers, 1, most);
    require_option("row_size", row_size, 1, most);
    require_option("n_sequences", n_sequences, 1, most);
    require_option("capacity", capacity, 1, most);
    // Rows are not touched before they are used: an unused part of the capacity costs no memory.
    const double floats = 2.0 * n_layers * row_size * n_sequences * capacity;
    if (floats > 1e15) raise<option_error>("a cache of ", floats, " floats is asked for, which is too large.");
    data_.reset(new float[static_cast<std::size_t>(floats)]);
    sequences_.resize(static_cast<std::size_t>(n_sequences));
  }

  int n_layers() const { return n_layers_; }
  int row_size() const { return row_size_; }
  int n_sequences() const { return static_cast<int>(sequences_.size()); }
  int capacity() const { return capacity_; }
  bool compacts() const { return mode_ == commit_mode::compact; }

  int size(int sequence) const { return at(sequence).size; }

  int append(int sequence, int n) {
    state& s = at(sequence);
    if (n < 0) raise<input_error>("the cache was asked to append ", n, " rows.");
    if (n > capacity_ - s.size - s.scratch) return -1;
    const int first = s.size + s.scratch;
    s.scratch += n;
    return first;
  }

  int commit(int sequence, std::span<const std::int32_t> kept) {
    state& s = at(sequence);
    check_kept(s, kept);
    int run = 0;
    while (run < static_cast<int>(kept.size()) && kept[static_cast<std::size_t>(run)] == run)
      ++run;
    if (compacts()) {
      for (int i = run; i < static_cast<int>(kept.size()); ++i) {
        move_row(sequence, s.size + kept[static_cast<std::size_t>(i)], s.size + i);
      }
      run = static_cast<int>(kept.size());
    }
    s = {s.size + run, 0};
    return run;
  }

  void truncate(int sequence, int n) {
    state& s = at(sequence);
    if (n < 0) raise<input_error>("the cache was asked to keep ", n, " rows.");
    s = {std::min(n, s.size), 0};
  }

  float* key(int layer, int sequence, int slot) { return row(layer, sequence, slot, 0); }
  float* value(int layer, int sequence, int slot) { return row(layer, sequence, slot, 1); }

 private:
  struct state {
    int size = 0;
    int scratch = 0;
  };

  state& at(int sequence) {
    if (sequence < 0 || sequence >= n_sequences()) {
      raise<input_error>("the cache has ", n_sequences(), " sequences, and number ", sequence, " was asked for.");
    }
    return sequences_[static_cast<std::size_t>(sequence)];
  }
  const state& at(int sequence) const { return const_cast<contiguous_kv*>(this)->at(sequence); }

  static void check_kept(const state& s, std::span<const std::int32_t> kept) {
    int last = -1;
    for (const std::int32_t row : kept) {
      if (row <= last || row >= s.scratch) {
        raise<input_error>("scratch row ", row, " cannot be kept after row ", last, " of ", s.scratch,
                           ": the rows kept must ascend.");
      }
      last = row;
    }
  }

  // [layers][sequences][keys, values][capacity][row_size]
  float* row(int layer, int sequence, int slot, int which) {
    const std::ptrdiff_t block = (static_cast<std::ptrdiff_t>(layer) * n_sequences() + sequence) * 2 + which;
    return data_.get() + (block * capacity_ + slot) * row_size_;
  }

  void move_row(int sequence, int from, int to) {
    for (int layer = 0; layer < n_layers_; ++layer) {
      std::copy_n(key(layer, sequence, from), row_size_, key(layer, sequence, to));
      std::copy_n(value(layer, sequence, from), row_size_, value(layer, sequence, to));
    }
  }

  int n_layers_;
  int row_size_;
  int capacity_;
  commit_mode mode_;
  std::unique_ptr<float[]> data_;
  std::vector<state> sequences_;
};

static_assert(KVStore<contiguous_kv>);

}  // namespace espalier
