// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/kv_store/memory/kv_shape.hpp"
#include "espalier/kv_store/memory/serialize_rows.hpp"
#include "espalier/kv_store/page_ledger.hpp"
#include "espalier/kv_store/slot_ledger.hpp"

namespace espalier {

//! Keys and values of every layer in a pool of pages that all sequences share: memory for the rows that are there, not
//! for the longest text of each sequence.
//!
//! Shapes      key(layer, sequence, slot), value(...): [row_size] floats, row_size = n_kv_heads * head_dim
//! Complexity  commit: O(layers * row_size * rows moved), nothing where the path is the leading run; no allocation
//! Law         KVStore's; append also says -1 where the pages are used up
//! Errors      option_error for sizes out of range; otherwise those of slot_ledger
//! Source      Kwon et al., Efficient memory management for large language model serving with PagedAttention, 2023
class paged_kv {
 public:
  paged_kv(int n_layers, int row_size, int n_sequences, int capacity, int page_size, int n_pages,
           commit_mode mode = commit_mode::compact)
      : ledger_(n_sequences, capacity, mode),
        pages_(n_sequences, capacity, page_size, n_pages),
        shape_(n_layers, row_size, n_sequences, capacity) {
    const std::size_t floats = shape_.numbers(n_pages, page_size, sizeof(float));
    block_ = detail::float_block(floats, true);
    data_ = block_.take(floats);
  }

  //! With as many pages as all sequences together can use.
  paged_kv(int n_layers, int row_size, int n_sequences, int capacity, int page_size)
      : paged_kv(n_layers, row_size, n_sequences, capacity, page_size,
                 page_ledger::enough(n_sequences, capacity, page_size)) {}

  int n_layers() const { return shape_.n_layers; }
  int row_size() const { return shape_.row_size; }
  int n_sequences() const { return ledger_.n_sequences(); }
  int capacity() const { return ledger_.capacity(); }
  int page_size() const { return pages_.page_size(); }
  //! Pages that no sequence has.
  int n_free() const { return pages_.n_free(); }
  bool compacts() const { return ledger_.compacts(); }

  int size(int sequence) const { return ledger_.size(sequence); }
  int append(int sequence, int n) {
    const int first = ledger_.append(sequence, 0);
    if (n < 0 || n > capacity() - first || !pages_.has_room(sequence, first + n)) return -1;
    pages_.ensure(sequence, first + n);
    return ledger_.append(sequence, n);
  }
  int commit(int sequence, std::span<const std::int32_t> kept) {
    const int n = ledger_.commit(sequence, kept,
                                 [&](int from, int to) { detail::move_keys_and_values(*this, sequence, from, to); });
    pages_.truncate(sequence, size(sequence));
    return n;
  }
  void truncate(int sequence, int n) {
    ledger_.truncate(sequence, n);
    pages_.truncate(sequence, size(sequence));
  }

  std::span<const token_id> prefix(int sequence) const { return ledger_.prefix(sequence); }
  std::uint64_t version(int sequence) const { return ledger_.version(sequence); }
  void remember(int sequence, std::int32_t first, std::span<const token_id> tokens) {
    ledger_.remember(sequence, first, tokens);
  }
  template <class ArchiveT>
  void serialize(ArchiveT& archive, int sequence) {
    detail::serialize_keys_and_values(*this, archive, sequence);
  }

  //! Pre         layer and sequence exist, and slot is committed or scratch
  float* key(int layer, int sequence, int slot) { return row(layer, sequence, 0, slot); }
  float* value(int layer, int sequence, int slot) { return row(layer, sequence, 1, slot); }

 private:
  // [layers][pages][keys, values][page_size][row_size]
  float* row(int layer, int sequence, int which, int slot) {
    const std::int32_t page = pages_.pages(sequence)[static_cast<std::size_t>(slot / page_size())];
    const std::ptrdiff_t block = (static_cast<std::ptrdiff_t>(layer) * pages_.n_pages() + page) * 2 + which;
    return data_ + (block * page_size() + slot % page_size()) * shape_.row_size;
  }

  slot_ledger ledger_;
  page_ledger pages_;
  detail::kv_shape shape_;
  detail::float_block block_;
  float* data_ = nullptr;
};

static_assert(SavedKVStore<paged_kv>);

}  // namespace espalier
