// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/kv_store/stores.cu
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! The scratch rows that the cache of each text is to keep, in the memory of the device. Kernels get it by value.
//!
//! Shapes      base, n [places]; rows [places][max]: the first n of each text count, in ascending order
struct kept_rows {
  const std::int32_t* base = nullptr;  //!< number of rows that were committed before
  const std::int32_t* rows = nullptr;  //!< the rows to keep, counted from base
  const std::int32_t* n = nullptr;     //!< how many rows are to be kept
  std::int32_t max = 0;                //!< most rows that a text may keep

  //! The kept rows of the text in this place.
  ESPALIER_HOST_DEVICE kept_rows of(std::int32_t place) const {
    return {base + place, rows + static_cast<std::ptrdiff_t>(place) * max, n + place, max};
  }
};

//! espalier::KVStore on the device, always compacting: how many rows are committed, and which of the rows after them
//! are kept, is known to the device alone.
//!
//! Minimal definition
//!   capacity(), n_sequences() -> int
//!   ensure(sequence, n, stream)   makes room, so that slots 0 to n - 1 can be written; the only member that may
//!                                 allocate. Not called while a graph is captured
//!   commit(texts, kept, stream)   moves the kept rows of each text (kept.base + kept.rows[i], i < kept.n) to the slots
//!                                 from kept.base on, in every layer of its sequence
//! Laws
//!   The laws of espalier::KVStore: a chain that is kept stays where it is; rows before base never change. commit does
//!   not synchronise
//! Errors
//!   input_error from ensure if the store is full; then nothing has changed
//! Models
//!   contiguous_kv, paged_kv, recurrent_kv; on_host_kv
template <class KVStoreT>
concept KVStore = requires(KVStoreT& kv, const KVStoreT& fixed, std::int32_t n, const text_batch& texts,
                           const kept_rows& kept, cudaStream_t stream) {
  { fixed.capacity() } -> std::convertible_to<std::int32_t>;
  { fixed.n_sequences() } -> std::convertible_to<std::int32_t>;
  kv.ensure(n, n, stream);
  kv.commit(texts, kept, stream);
};

//! espalier::PrefixKVStore on the device: it remembers, in the host's memory, the tokens of the leading rows of each
//! sequence, as far as the host knows these tokens.
//!
//! Minimal definition, besides KVStore
//!   prefix(sequence) -> span<const token_id>, version(sequence) -> std::uint64_t, remember(sequence, first, tokens)
//! Models
//!   contiguous_kv, paged_kv
template <class KVStoreT>
concept PrefixKVStore = KVStore<KVStoreT> && espalier::detail::RemembersTokens<KVStoreT>;

//! espalier::SharingKVStore on the device. Sequences can share rows whose tokens the host knows: the first
//! prefix(sequence).size() rows of each sequence, and no other committed row.
//!
//! Minimal definition, besides PrefixKVStore
//!   ensure(sequence, n, stream)              makes room, so that slots prefix(sequence).size() to n - 1 can be
//!                                            written, and none before them
//!   truncate(sequence, n)                    gives up the rows after the first n, and forgets their tokens
//!   adopt(sequence, tokens, stream) -> int   as espalier::SharingKVStore's
//!   fork(from, to, stream)                   makes `to` hold the rows of prefix(from)
//!   n_pages(), page_size(), n_free() -> int  as espalier::SharingKVStore's
//! Laws
//!   The laws of espalier::SharingKVStore, in the order of the stream
//! Models
//!   paged_kv
template <class KVStoreT>
concept SharingKVStore = PrefixKVStore<KVStoreT> && espalier::detail::HasTruncate<KVStoreT> &&
    espalier::detail::HasPages<KVStoreT> &&
    requires(KVStoreT& kv, std::int32_t sequence, std::span<const token_id> tokens, cudaStream_t stream) {
  { kv.adopt(sequence, tokens, stream) } -> std::convertible_to<std::int32_t>;
  kv.fork(sequence, sequence, stream);
};

//! A store on the device for models with recurrent layers, which keeps a state of each sequence and the rows after it.
//! A pass brings the state up to the committed tokens before the pass.
//!
//! Minimal definition, besides KVStore
//!   most_rows() -> int          number of rows that there is room for after a state, scratch included; capacity() if
//!                               there is room for all
//!   states() -> recurrent_view  the states and the rows after them, for kernels
//!   shape() -> recurrent_shape  their sizes
//! Laws
//!   KVStore's, but a sequence that goes back to fewer tokens than its state has seen begins anew, with no token
//! Models
//!   recurrent_kv
template <class KVStoreT>
concept RecurrentKVStore = KVStore<KVStoreT> && requires(const KVStoreT& kv) {
  { kv.most_rows() } -> std::convertible_to<std::int32_t>;
  kv.states();
  kv.shape();
};

//! Returns whether a store holds states of recurrent layers. A text that goes back is then read from its beginning.
template <class KVStoreT>
bool keeps_states(const KVStoreT& kv) {
  if constexpr (RecurrentKVStore<KVStoreT>) return kv.shape().layers > 0;
  return false;
}

//! Returns the smaller one of `most` and the number of rows that a pass may give to a sequence: in a RecurrentKVStore
//! half of most_rows(), since the state may be one pass behind, or all of them if there is room for the whole capacity.
template <class KVStoreT>
std::int32_t rows_of_pass(const KVStoreT& kv, std::int32_t most) {
  if constexpr (RecurrentKVStore<KVStoreT>) {
    const std::int32_t room = kv.most_rows() < kv.capacity() ? kv.most_rows() / 2 : kv.most_rows();
    return room < most ? room : most;
  }
  return most;
}

//! Checks that a store has room for passes of n_pass rows of a sequence, or for its whole capacity.
//!
//! Errors      option_error where it has less
template <KVStore KVStoreT>
void require_rows(const KVStoreT& kv, std::int32_t n_pass) {
  if constexpr (RecurrentKVStore<KVStoreT>) {
    if (kv.most_rows() < kv.capacity() && kv.most_rows() / 2 < n_pass) {
      raise<option_error>("option rows is ", kv.most_rows(), ", but passes of ", n_pass, " tokens need ", 2 * n_pass,
                          ": a recurrent state may be one pass behind.");
    }
  }
}

}  // namespace espalier::cuda
