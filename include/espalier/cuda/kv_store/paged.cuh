// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/kv_store/stores.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/kv_store/compaction.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/kv_store/memory/kv_shape.hpp"
#include "espalier/kv_store/page_ledger.hpp"
#include "espalier/kv_store/token_ledger.hpp"

namespace espalier::cuda {

namespace detail {

inline constexpr unsigned page_copy_threads = 128;

//! Copies a page; a thread copies one chunk. In each layer all keys and values of a page are one piece of memory.
template <class ChunkT, class NumberT>
ESPALIER_KERNEL void copy_chunks(kv_view<NumberT> kv, std::int32_t from, std::int32_t to, std::int64_t piece) {
  const std::int64_t chunks = piece * static_cast<std::int64_t>(sizeof(NumberT)) / sizeof(ChunkT);
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= kv.n_layers * chunks) return;
  NumberT* const layer = kv.data + i / chunks * kv.layer_stride;
  reinterpret_cast<ChunkT*>(layer + to * piece)[i % chunks] =
      reinterpret_cast<const ChunkT*>(layer + from * piece)[i % chunks];
}

template <class ChunkT, class NumberT>
void launch_page_copy(const kv_view<NumberT>& kv, std::int32_t from, std::int32_t to, cudaStream_t stream) {
  const std::int64_t piece = std::int64_t{2} * kv.page_size * kv.row_size;
  const std::int64_t chunks =
      kv.n_layers * piece * static_cast<std::int64_t>(sizeof(NumberT)) / static_cast<std::int64_t>(sizeof(ChunkT));
  launch("copy_chunks", copy_chunks<ChunkT, NumberT>,
         {.grid = dim3(static_cast<unsigned>((chunks + page_copy_threads - 1) / page_copy_threads)),
          .threads = page_copy_threads},
         stream, kv, from, to, piece);
}

//! Copies all rows of a page into another one, in every layer, in one launch.
//!
//! Complexity  reads 2 * n_layers * page_size * row_size numbers and writes as many, in pieces of 16 bytes if the size
//!             of a page in one layer is a multiple of that. No synchronisation, no allocation
template <class NumberT>
void copy_page(const kv_view<NumberT>& kv, std::int32_t from, std::int32_t to, cudaStream_t stream) {
  const std::size_t bytes =
      std::size_t{2} * static_cast<std::size_t>(kv.page_size) * static_cast<std::size_t>(kv.row_size) * sizeof(NumberT);
  if (bytes % sizeof(uint4) == 0) {
    launch_page_copy<uint4>(kv, from, to, stream);
  } else {
    launch_page_copy<NumberT>(kv, from, to, stream);
  }
}

//! Pages that a sequence gets. They are passed by value into a kernel, so that no memory of the host has to stay until
//! they are read.
template <std::int32_t Max>
struct new_pages {
  static constexpr std::int32_t max = Max;
  std::int32_t n = 0;
  std::int32_t page[Max] = {};
};

template <std::int32_t Max>
ESPALIER_KERNEL void enter_pages(std::int32_t* table, new_pages<Max> added) {
  if (static_cast<std::int32_t>(threadIdx.x) < added.n) table[threadIdx.x] = added.page[threadIdx.x];
}

}  // namespace detail

//! Keys and values in a pool of pages that all sequences share. The constructor takes the memory of n_pages pages. A
//! sequence uses only the pages that its rows need, so the pool can be smaller than the longest texts of all sequences
//! together. Texts that begin alike share the pages of their beginning: see page_ledger. Every commit compacts: it
//! keeps all rows that it is given.
//!
//! The host decides which page belongs to which sequence, and the device has a copy of that table. The host's decisions
//! take effect in the order of the stream: use one stream, or order the streams, including those of sequences that
//! share pages.
//!
//! Rows are shared if the host knows their tokens. The host knows the tokens of the first prefix(sequence).size() rows
//! of a sequence, and nothing writes these rows any more. The device alone knows how many rows after them are
//! committed. So ensure() sees to it that no other sequence has, or can adopt, a page with slots from
//! prefix(sequence).size() on: it gives the sequence a copy of each such page, or, if only this sequence uses the page
//! and no page is free for a copy, forgets the page's tokens. A part that wants to write before the end of
//! prefix(sequence) must truncate the sequence first.
//!
//! Shapes      as kv_view: data [layers][n_pages][keys, values][page_size][row_size]; pages [n_sequences][capacity /
//!             page_size rounded up]
//! Complexity  ensure: a launch for each 64 table entries from the first changed one on, none if no entry changes, and
//!             a launch for each page that is copied, at most one if the host knows the tokens of all committed rows;
//!             fork: a launch for each 64 pages of the sequence; adopt: likewise, none if it finds no more rows than
//!             the sequence holds; truncate, release: host work alone; commit: as contiguous_kv's. No synchronisation,
//!             no allocation of device memory after construction
//! Law         SharingKVStore's; capacity() is at most the slots of all pages
//! Errors      option_error for sizes out of range; input_error for more slots than the capacity, for a sequence that
//!             does not exist, or if too few pages are free, cached ones included: nothing has changed then; cuda_error
//! Source      Kwon et al., Efficient memory management for large language model serving with PagedAttention, 2023;
//!             Zheng et al., SGLang: efficient execution of structured language model programs, 2024
template <class NumberT>
class paged_kv {
 public:
  using number = NumberT;

  paged_kv(std::int32_t n_layers, std::int32_t row_size, std::int32_t n_sequences, std::int32_t capacity,
           std::int32_t page_size, std::int32_t n_pages)
      : shape_(n_layers, row_size, n_sequences, capacity),
        ledger_(n_sequences, capacity, page_size, n_pages),
        tokens_(n_sequences, capacity),
        data_(shape_.numbers(n_pages, page_size, sizeof(NumberT))),
        table_(device_array<std::int32_t>::filled(
            static_cast<std::size_t>(n_sequences) * static_cast<std::size_t>(ledger_.max_pages()), 0xFF)) {}

  //! A store with as many pages as all sequences together can use.
  paged_kv(std::int32_t n_layers, std::int32_t row_size, std::int32_t n_sequences, std::int32_t capacity,
           std::int32_t page_size)
      : paged_kv(n_layers, row_size, n_sequences, capacity, page_size,
                 page_ledger::enough(n_sequences, capacity, page_size)) {}

  std::int32_t n_layers() const { return shape_.n_layers; }
  std::int32_t row_size() const { return shape_.row_size; }
  std::int32_t n_sequences() const { return shape_.n_sequences; }
  std::int32_t capacity() const { return ledger_.capacity(); }
  std::int32_t page_size() const { return ledger_.page_size(); }
  std::int32_t n_pages() const { return ledger_.n_pages(); }
  //! Number of pages that no sequence uses, cached ones included.
  std::int32_t n_free() const { return ledger_.n_free(); }

  //! The tokens of the leading committed rows, as far as the host knows them, and the version of these tokens: see
  //! PrefixKVStore.
  std::span<const token_id> prefix(std::int32_t sequence) const { return tokens_.prefix(sequence); }
  std::uint64_t version(std::int32_t sequence) const { return tokens_.version(sequence); }
  void remember(std::int32_t sequence, std::int32_t first, std::span<const token_id> tokens) {
    tokens_.remember(sequence, first, tokens);
    ledger_.remember(sequence, first, tokens_.prefix(sequence));
  }

  //! The rows of all sequences, for kernels. The addresses stay the same as long as the store lives.
  kv_view<NumberT> view() const {
    return {.data = data_.data(),
            .pages = table_.data(),
            .layer_stride = static_cast<std::int64_t>(n_pages()) * 2 * page_size() * shape_.row_size,
            .page_size = page_size(),
            .max_pages = ledger_.max_pages(),
            .row_size = shape_.row_size,
            .n_layers = shape_.n_layers};
  }

  //! Provides slots 0 to n_slots - 1 of the sequence for all later work of the stream; slots from
  //! prefix(sequence).size() on can be written. A graph cannot capture this call, because the host chooses the pages.
  void ensure(std::int32_t sequence, std::int32_t n_slots, cudaStream_t stream) {
    const auto first = static_cast<std::int32_t>(prefix(sequence).size());
    auto changed = static_cast<std::int32_t>(ledger_.pages(sequence).size());
    ledger_.ensure(sequence, first, n_slots, [&](std::int32_t from, std::int32_t to, std::int32_t) {
      detail::copy_page(view(), from, to, stream);
      changed = first / page_size();
    });
    enter(sequence, changed, stream);
  }

  //! Gives up the rows after the first n_slots slots. Earlier work of the stream still finds them.
  void truncate(std::int32_t sequence, std::int32_t n_slots) {
    const std::int32_t n = n_slots < 0 ? 0 : n_slots;
    ledger_.truncate(sequence, n, prefix(sequence));
    tokens_.truncate(sequence, n);
  }
  //! Gives up all rows of a sequence.
  void release(std::int32_t sequence) { truncate(sequence, 0); }

  //! Makes the sequence hold the rows of the longest beginning of `tokens` that the store still has, and no other row;
  //! returns their number. All later work of the stream finds them. See SharingKVStore.
  std::int32_t adopt(std::int32_t sequence, std::span<const token_id> tokens, cudaStream_t stream) {
    const std::span<const token_id> known = prefix(sequence);
    const auto same = std::mismatch(known.begin(), known.end(), tokens.begin(), tokens.end()).first - known.begin();
    const auto held = static_cast<std::int32_t>(same);
    const std::int32_t found = ledger_.adopt(sequence, tokens, held, known);
    if (found > held) {
      tokens_.remember(sequence, 0, tokens.first(static_cast<std::size_t>(found)));
      enter(sequence, 0, stream);
      return found;
    }
    truncate(sequence, held);
    return held;
  }
  //! Makes `to` hold the rows of prefix(from), and no other row, for all later work of the stream. See SharingKVStore.
  void fork(std::int32_t from, std::int32_t to, cudaStream_t stream) {
    const auto n = static_cast<std::int32_t>(prefix(from).size());
    if (from == to) return truncate(to, n);
    ledger_.fork(from, to, n, prefix(to));
    tokens_.remember(to, 0, prefix(from));
    enter(to, 0, stream);
  }

  //! For each text, moves its kept rows (kept.base + kept.rows[i], i < kept.n) to the slots from kept.base on, in every
  //! layer. No synchronisation.
  //!
  //! Pre         kept.max <= capacity()
  void commit(const text_batch& texts, const kept_rows& kept, cudaStream_t stream) const {
    detail::compact(view(), texts, kept, stream);
  }

 private:
  // Copies the sequence's pages from index `first` on into the device's table.
  void enter(std::int32_t sequence, std::int32_t first, cudaStream_t stream) {
    const std::span<const std::int32_t> pages = ledger_.pages(sequence);
    const auto n = static_cast<std::int32_t>(pages.size());
    while (first < n) {
      detail::new_pages<64> added;
      added.n = n - first < added.max ? n - first : added.max;
      for (std::int32_t i = 0; i < added.n; ++i)
        added.page[i] = pages[static_cast<std::size_t>(first + i)];
      launch("enter_pages", detail::enter_pages<added.max>, {.threads = static_cast<unsigned>(added.max)}, stream,
             table_.data() + static_cast<std::ptrdiff_t>(sequence) * ledger_.max_pages() + first, added);
      first += added.n;
    }
  }

  espalier::detail::kv_shape shape_;
  page_ledger ledger_;
  token_ledger tokens_;
  device_array<NumberT> data_;
  device_array<std::int32_t> table_;
};

}  // namespace espalier::cuda
