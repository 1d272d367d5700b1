// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/float_block.hpp"
#include "espalier/kv_store/slot_ledger.hpp"

namespace espalier {

//! Keys and values of every layer in one block of memory, each sequence with room for `capacity` rows.
//!
//! Shapes      key(layer, sequence, slot), value(...): [row_size] floats, row_size = n_kv_heads * head_dim
//! Complexity  commit: O(layers * row_size * rows moved), nothing where the path is the leading run; no allocation
//! Law         KVStore's; key() and value() may be called from several threads at once
//! Errors      option_error for sizes out of range; otherwise those of slot_ledger
class contiguous_kv {
 public:
  contiguous_kv(int n_layers, int row_size, int n_sequences, int capacity, commit_mode mode = commit_mode::compact)
      : ledger_(n_sequences, capacity, mode), n_layers_(n_layers), row_size_(row_size) {
    require_option("number of layers", n_layers, 1, 1 << 20);
    require_option("cache row size", row_size, 1, 1 << 24);
    const double floats = 2.0 * n_layers * row_size * n_sequences * capacity;
    require_option("cache size in floats", floats, 2.0, 1e15);
    block_ = detail::float_block(static_cast<std::size_t>(floats), true);
    data_ = block_.take(static_cast<std::size_t>(floats));
  }

  int n_layers() const { return n_layers_; }
  int row_size() const { return row_size_; }
  int n_sequences() const { return ledger_.n_sequences(); }
  int capacity() const { return ledger_.capacity(); }
  bool compacts() const { return ledger_.compacts(); }

  int size(int sequence) const { return ledger_.size(sequence); }
  int append(int sequence, int n) { return ledger_.append(sequence, n); }
  int commit(int sequence, std::span<const std::int32_t> kept) {
    return ledger_.commit(sequence, kept, [&](int from, int to) {
      for (int layer = 0; layer < n_layers_; ++layer) {
        std::copy_n(key(layer, sequence, from), row_size_, key(layer, sequence, to));
        std::copy_n(value(layer, sequence, from), row_size_, value(layer, sequence, to));
      }
    });
  }
  void truncate(int sequence, int n) { ledger_.truncate(sequence, n); }

  //! Pre         layer, sequence and slot exist
  float* key(int layer, int sequence, int slot) { return row(layer, sequence, 0, slot); }
  float* value(int layer, int sequence, int slot) { return row(layer, sequence, 1, slot); }

 private:
  // [layers][sequences][keys, values][capacity][row_size]
  float* row(int layer, int sequence, int which, int slot) {
    const std::ptrdiff_t block = (static_cast<std::ptrdiff_t>(layer) * n_sequences() + sequence) * 2 + which;
    return data_ + (block * capacity() + slot) * row_size_;
  }

  slot_ledger ledger_;
  int n_layers_;
  int row_size_;
  detail::float_block block_;
  float* data_ = nullptr;
};

static_assert(KVStore<contiguous_kv>);

}  // namespace espalier
