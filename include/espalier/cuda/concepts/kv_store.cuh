// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! The scratch rows of each text that its cache keeps, in the memory of the device: by value into kernels.
//!
//! Shapes      base, n [places]; rows [places][max], of which the first n of each are there, ascending from 0 or more
struct kept_rows {
  const std::int32_t* base = nullptr;  //!< rows that were committed before
  const std::int32_t* rows = nullptr;
  const std::int32_t* n = nullptr;
  std::int32_t max = 0;

  //! Those of one text.
  ESPALIER_HOST_DEVICE kept_rows of(std::int32_t place) const {
    return {base + place, rows + static_cast<std::ptrdiff_t>(place) * max, n + place, max};
  }
};

//! espalier::KVStore on the device, always compacting: how many rows are committed, and which of the rows after them
//! are kept, is known to the device alone.
//!
//! Minimal definition
//!   capacity(), n_sequences() -> int
//!   ensure(sequence, n, stream)   slots 0 to n - 1 can be written from now on; the only verb that may allocate. Not
//!                                 captured
//!   commit(texts, kept, stream)   in the sequence of each text, row base + rows[i] moves to base + i, in every layer,
//!                                 for i below n
//! Laws
//!   Those of espalier::KVStore: a chain that is kept stays where it is; rows before base never change. commit does not
//!   synchronise
//! Errors
//!   ensure: input_error where the store is full, and nothing has changed
//! Models
//!   contiguous_kv, paged_kv; on_host_kv
template <class KVStoreT>
concept KVStore = requires(KVStoreT& kv, const KVStoreT& fixed, std::int32_t n, const text_batch& texts,
                           const kept_rows& kept, cudaStream_t stream) {
  { fixed.capacity() } -> std::convertible_to<std::int32_t>;
  { fixed.n_sequences() } -> std::convertible_to<std::int32_t>;
  kv.ensure(n, n, stream);
  kv.commit(texts, kept, stream);
};

//! espalier::PrefixKVStore on the device: the tokens are those that the host knows, and lie in its memory.
//!
//! Minimal definition, besides KVStore
//!   prefix(sequence) -> span<const token_id>, version(sequence) -> std::uint64_t, remember(sequence, first, tokens)
//! Models
//!   contiguous_kv, paged_kv
template <class KVStoreT>
concept PrefixKVStore = KVStore<KVStoreT> && espalier::detail::RemembersTokens<KVStoreT>;

//! espalier::SharingKVStore on the device. Shared are the rows whose tokens the host knows: prefix(sequence).size() of
//! them, whatever else the device has committed.
//!
//! Minimal definition, besides PrefixKVStore
//!   ensure(sequence, n, stream)              slots from prefix(sequence).size() to n - 1 can be written from now on,
//!                                            and none before
//!   truncate(sequence, n)                    gives up the rows behind the first n, and forgets their tokens
//!   adopt(sequence, tokens, stream) -> int   the sequence then holds the longest beginning of these tokens that the
//!                                            store has rows of, and nothing else; gives how many
//!   fork(from, to, stream)                   `to` then holds the rows of prefix(from)
//!   n_pages(), page_size(), n_free() -> int
//! Laws
//!   Those of espalier::SharingKVStore, in the order of the stream
//! Models
//!   paged_kv
template <class KVStoreT>
concept SharingKVStore = PrefixKVStore<KVStoreT> && espalier::detail::HasTruncate<KVStoreT> &&
    espalier::detail::HasPages<KVStoreT> &&
    requires(KVStoreT& kv, std::int32_t sequence, std::span<const token_id> tokens, cudaStream_t stream) {
  { kv.adopt(sequence, tokens, stream) } -> std::convertible_to<std::int32_t>;
  kv.fork(sequence, sequence, stream);
};

}  // namespace espalier::cuda
