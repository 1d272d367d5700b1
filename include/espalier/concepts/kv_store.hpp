// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>
#include <cstdint>
#include <span>

namespace espalier {

namespace detail {

template <class KVStoreT>
concept HasCacheSize = requires(const KVStoreT& kv, std::int32_t sequence) {
  { kv.size(sequence) } -> std::convertible_to<std::int32_t>;
  { kv.capacity() } -> std::convertible_to<std::int32_t>;
};

template <class KVStoreT>
concept HasAppend = requires(KVStoreT& kv, std::int32_t sequence, std::int32_t n) {
  { kv.append(sequence, n) } -> std::convertible_to<std::int32_t>;
};

template <class KVStoreT>
concept HasCommit = requires(KVStoreT& kv, std::int32_t sequence, std::span<const std::int32_t> kept) {
  { kv.commit(sequence, kept) } -> std::convertible_to<std::int32_t>;
};

template <class KVStoreT>
concept HasTruncate = requires(KVStoreT& kv, std::int32_t sequence, std::int32_t n) {
  kv.truncate(sequence, n);
};

template <class KVStoreT>
concept SaysWhetherItCompacts = requires(const KVStoreT& kv) {
  { kv.compacts() } -> std::same_as<bool>;
};

}  // namespace detail

//! The cache of keys and values as slots, for one or more sequences: committed rows first, then this round's scratch.
//!
//! Minimal definition
//!   size(sequence) -> int          committed rows
//!   capacity() -> int              rows a sequence can hold, committed and scratch
//!   append(sequence, n) -> int     n more scratch slots; the first of them, or -1 (and no change) where they do not fit
//!   commit(sequence, kept) -> int  commits these scratch rows in this order and drops all others; kept ascends and
//!                                  counts from size(sequence); returns how many it could keep. A compacting store keeps
//!                                  all; one that only truncates keeps the longest leading run with kept[i] == i, and
//!                                  what is missing joins the next round's pending chain
//!   truncate(sequence, n)          keeps the first n committed rows; drops scratch; n beyond size() drops scratch only
//!   compacts() -> bool
//! Laws
//!   commit after append of a chain equals plain appending; append, then commit of nothing, changes nothing; what is
//!   committed never changes.
//! Models
//!   contiguous_kv, paged_kv, token_kv; each in both settings
template <class KVStoreT>
concept KVStore = detail::HasCacheSize<KVStoreT> && detail::HasAppend<KVStoreT> && detail::HasCommit<KVStoreT> &&
    detail::HasTruncate<KVStoreT> && detail::SaysWhetherItCompacts<KVStoreT>;

}  // namespace espalier
