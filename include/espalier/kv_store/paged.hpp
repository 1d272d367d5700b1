// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
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

//! A store of the keys and values of every layer in a pool of pages that all sequences share. The constructor takes the
//! memory of n_pages pages. A sequence uses only the pages that its rows need, so the pool can be smaller than the
//! longest texts of all sequences together. Texts that begin alike share the pages of their beginning, if one sequence
//! adopts rows that another one has left or holds: see page_ledger.
//!
//! Shapes      key(layer, sequence, slot), value(...): [row_size] floats, row_size = n_kv_heads * head_dim
//! Complexity  commit: O(layers * row_size * rows moved), nothing if the kept rows are the first ones; append: as much
//!             for the rows of a page that is copied, one page at most; fork, adopt: as page_ledger, no row is copied.
//!             The first remember(), adopt() or fork() to a sequence takes memory for its tokens; otherwise only
//!             construction and serialize() allocate
//! Law         as SharingKVStore; append also returns -1 if the pages are used up, cached ones included; capacity() is
//!             no more than the slots of all pages
//! Errors      option_error for sizes out of range; otherwise as slot_ledger
//! Source      Kwon et al., Efficient memory management for large language model serving with PagedAttention, 2023;
//!             Zheng et al., SGLang: efficient execution of structured language model programs, 2024
class paged_kv {
 public:
  paged_kv(int n_layers, int row_size, int n_sequences, int capacity, int page_size, int n_pages,
           commit_mode mode = commit_mode::compact)
      : shape_(n_layers, row_size, n_sequences, capacity),
        pages_(n_sequences, capacity, page_size, n_pages),
        ledger_(n_sequences, pages_.capacity(), mode) {
    const std::size_t floats = shape_.numbers(n_pages, page_size, sizeof(float));
    block_ = detail::float_block(floats, true);
    data_ = block_.take(floats);
  }

  //! Makes a store with as many pages as all sequences together can use.
  paged_kv(int n_layers, int row_size, int n_sequences, int capacity, int page_size)
      : paged_kv(n_layers, row_size, n_sequences, capacity, page_size,
                 page_ledger::enough(n_sequences, capacity, page_size)) {}

  int n_layers() const { return shape_.n_layers; }
  int row_size() const { return shape_.row_size; }
  int n_sequences() const { return ledger_.n_sequences(); }
  int capacity() const { return ledger_.capacity(); }
  int page_size() const { return pages_.page_size(); }
  int n_pages() const { return pages_.n_pages(); }
  //! Number of pages that no sequence uses, cached ones included.
  int n_free() const { return pages_.n_free(); }
  bool compacts() const { return ledger_.compacts(); }

  int size(int sequence) const { return ledger_.size(sequence); }
  int append(int sequence, int n) {
    const int first = ledger_.append(sequence, 0);
    if (n < 0 || n > capacity() - first || !pages_.has_room(sequence, first, first + n)) return -1;
    pages_.ensure(sequence, first, first + n, [&](int from, int to, int n_rows) { copy_rows(from, to, n_rows); });
    return ledger_.append(sequence, n);
  }
  int commit(int sequence, std::span<const std::int32_t> kept) {
    const int n = ledger_.commit(sequence, kept,
                                 [&](int from, int to) { detail::move_keys_and_values(*this, sequence, from, to); });
    pages_.truncate(sequence, size(sequence));
    return n;
  }
  void truncate(int sequence, int n) {
    pages_.truncate(sequence, (std::min)(n, size(sequence)), prefix(sequence));
    ledger_.truncate(sequence, n);
  }

  int adopt(int sequence, std::span<const token_id> tokens) {
    const std::span<const token_id> known = prefix(sequence);
    const auto same = std::mismatch(known.begin(), known.end(), tokens.begin(), tokens.end()).first - known.begin();
    const int held = static_cast<int>(same);
    const int found = pages_.adopt(sequence, tokens, held, known);
    if (found > held) {
      ledger_.hold(sequence, found, tokens.first(static_cast<std::size_t>(found)));
      return found;
    }
    truncate(sequence, held);
    return held;
  }
  void fork(int from, int to) {
    const int n = size(from);
    if (from == to) return truncate(to, n);
    pages_.fork(from, to, n, prefix(to));
    ledger_.hold(to, n, prefix(from));
  }

  std::span<const token_id> prefix(int sequence) const { return ledger_.prefix(sequence); }
  std::uint64_t version(int sequence) const { return ledger_.version(sequence); }
  void remember(int sequence, std::int32_t first, std::span<const token_id> tokens) {
    ledger_.remember(sequence, first, tokens);
    pages_.remember(sequence, first, prefix(sequence));
  }
  template <class ArchiveT>
  void serialize(ArchiveT& archive, int sequence) {
    detail::serialize_keys_and_values(*this, archive, sequence);
  }

  //! The keys, and the values, of one row: [row_size]. Valid until the sequence changes.
  //!
  //! Pre         layer and sequence exist, and slot is committed or scratch
  float* key(int layer, int sequence, int slot) { return row(layer, sequence, 0, slot); }
  float* value(int layer, int sequence, int slot) { return row(layer, sequence, 1, slot); }

 private:
  float* row(int layer, int sequence, int which, int slot) {
    return row_in(pages_.pages(sequence)[static_cast<std::size_t>(slot / page_size())], layer, which,
                  slot % page_size());
  }
  // The row in the pool, whose layout is [layers][pages][keys, values][page_size][row_size].
  float* row_in(int page, int layer, int which, int slot) {
    const std::ptrdiff_t block = (static_cast<std::ptrdiff_t>(layer) * n_pages() + page) * 2 + which;
    return data_ + (block * page_size() + slot) * shape_.row_size;
  }
  // Copies the first rows of a page to another page.
  void copy_rows(int from, int to, int n_rows) {
    const std::ptrdiff_t n = static_cast<std::ptrdiff_t>(n_rows) * row_size();
    for (int layer = 0; layer < n_layers(); ++layer) {
      for (const int which : {0, 1})
        std::copy_n(row_in(from, layer, which, 0), n, row_in(to, layer, which, 0));
    }
  }

  detail::kv_shape shape_;
  page_ledger pages_;
  slot_ledger ledger_;
  detail::float_block block_;
  float* data_ = nullptr;
};

static_assert(SavedKVStore<paged_kv> && SharingKVStore<paged_kv>);

}  // namespace espalier
