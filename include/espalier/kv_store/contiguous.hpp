// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/static/arena.hpp"
#include "espalier/core/static/static_capacity.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/kv_store/memory/kv_shape.hpp"
#include "espalier/kv_store/memory/serialize_rows.hpp"
#include "espalier/kv_store/slot_ledger.hpp"

namespace espalier {

//! A store of the keys and values of every layer in one block of memory. Each sequence has room for `capacity` rows.
//!
//! Shapes      key(layer, sequence, slot), value(...): [row_size] floats, row_size = n_kv_heads * head_dim
//! Complexity  commit: O(layers * row_size * rows moved); no row moves if the kept rows are the first ones. A
//!             sequence's first remember() takes memory for its tokens; otherwise only construction and serialize()
//!             allocate
//! Law         as KVStore; key() and value() may be called from several threads at once
//! Errors      option_error for sizes out of range; otherwise as slot_ledger
class contiguous_kv {
 public:
  contiguous_kv(int n_layers, int row_size, int n_sequences, int capacity, commit_mode mode = commit_mode::compact)
      : ledger_(n_sequences, capacity, mode), shape_(n_layers, row_size, n_sequences, capacity) {
    const std::size_t floats = shape_.numbers(n_sequences, capacity, sizeof(float));
    block_ = detail::float_block(floats, true);
    data_ = block_.take(floats);
  }

  //! Number of bytes that a store of one sequence takes of an arena.
  static constexpr std::size_t bytes(const static_capacity& c) {
    return slot_ledger::bytes(c) +
           arena::bytes_of<float>(2 * static_cast<std::size_t>(c.cache_row) * static_cast<std::size_t>(c.context));
  }

  int n_layers() const { return shape_.n_layers; }
  int row_size() const { return shape_.row_size; }
  int n_sequences() const { return ledger_.n_sequences(); }
  int capacity() const { return ledger_.capacity(); }
  bool compacts() const { return ledger_.compacts(); }

  int size(int sequence) const { return ledger_.size(sequence); }
  int append(int sequence, int n) { return ledger_.append(sequence, n); }
  int commit(int sequence, std::span<const std::int32_t> kept) {
    return ledger_.commit(sequence, kept,
                          [&](int from, int to) { detail::move_keys_and_values(*this, sequence, from, to); });
  }
  void truncate(int sequence, int n) { ledger_.truncate(sequence, n); }

  std::span<const token_id> prefix(int sequence) const { return ledger_.prefix(sequence); }
  std::uint64_t version(int sequence) const { return ledger_.version(sequence); }
  void remember(int sequence, std::int32_t first, std::span<const token_id> tokens) {
    ledger_.remember(sequence, first, tokens);
  }
  template <class ArchiveT>
  void serialize(ArchiveT& archive, int sequence) {
    detail::serialize_keys_and_values(*this, archive, sequence);
  }

  //! The keys, and the values, in one slot: [row_size]. The pointer is valid as long as the store lives; a commit may
  //! move the numbers to another slot.
  //!
  //! Pre         layer, sequence and slot exist
  float* key(int layer, int sequence, int slot) { return row(layer, sequence, 0, slot); }
  float* value(int layer, int sequence, int slot) { return row(layer, sequence, 1, slot); }

 private:
  // The row in the block, whose layout is [layers][sequences][keys, values][capacity][row_size].
  float* row(int layer, int sequence, int which, int slot) {
    const std::ptrdiff_t block = (static_cast<std::ptrdiff_t>(layer) * n_sequences() + sequence) * 2 + which;
    return data_ + (block * capacity() + slot) * shape_.row_size;
  }

  slot_ledger ledger_;
  detail::kv_shape shape_;
  detail::float_block block_;
  float* data_ = nullptr;
};

static_assert(SavedKVStore<contiguous_kv>);

}  // namespace espalier
