// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/hybrid.cpp
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdint>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"

namespace espalier {

namespace detail {

template <class StoreT>
concept HasStateAt = requires(const StoreT& kv, std::int32_t sequence, std::int32_t n) {
  { kv.state_at(sequence, n) } -> std::convertible_to<std::int32_t>;
};

template <class StoreT>
concept HasHoldState = requires(StoreT& kv, std::int32_t sequence, std::int32_t from, std::int32_t n) {
  kv.hold_state(sequence, from, n);
};

template <class StoreT>
concept HasParents = requires(StoreT& kv, const StoreT& fixed, std::int32_t sequence, std::int32_t slot) {
  { fixed.parent(sequence, slot) } -> std::convertible_to<std::int32_t>;
  kv.set_parent(sequence, slot, slot);
};

template <class StoreT>
concept HasRoomForRows = requires(const StoreT& kv) {
  { kv.most_rows() } -> std::convertible_to<std::int32_t>;
};

}  // namespace detail

//! A store for a model whose cache, in all layers or in some, is a state instead of rows: Mamba-2 and the like.
//!
//! The state after n tokens contains all that the model knows of them. It can be computed from a state after fewer
//! tokens and the rows between, but not from a later state. So the store holds few states, each after a number of
//! slots, and the rows of the slots after them. A pass begins at a state that all of its rows see, computes the states
//! of the nodes below in memory of its own, and leaves one state in the store: the state after the tokens that are
//! certain to stay. Committing a path keeps its rows, which the next pass goes through once more; rolling back drops
//! rows. Neither computes anything.
//!
//! Minimal definition, besides KVStore
//!   state_at(sequence, n) -> int       the largest number of slots, n at most, after which a state is held with all
//!                                      rows that follow; 0 for the beginning, whose state is zero; -1 where there is
//!                                      none
//!   hold_state(sequence, from, n)      notes that a pass has left the state after the first n slots, computed from the
//!                                      state after `from` slots, where `from` is at most size(sequence). These two
//!                                      states are then held, and no other; only one where n is `from`
//!   parent(sequence, slot) -> int      the slot before this one on its path: slot - 1 for a committed slot, the slot
//!                                      that set_parent gave for a scratch slot, -1 for slot 0
//!   set_parent(sequence, slot, parent) says which slot comes before a scratch slot on its path
//!   most_rows() -> int                 number of rows that there is room for after a state, scratch included
//!   append(sequence, n)                returns -1 also where more than most_rows() rows would follow the state at
//!                                      state_at(sequence, size(sequence))
//!   truncate(sequence, n)              with n below size(sequence), keeps no row where state_at(sequence, n) is -1,
//!                                      or, if most_rows() is below capacity(), where that state lies more than half of
//!                                      most_rows() before n: no pass would have room, and the text is to be read again
//! Laws
//!   state_at(sequence, size(sequence)) is never -1. A state after n slots is held while these are the first n
//!   committed slots, and the latest state is held longest. A state after a slot that a commit moved or dropped, or
//!   that truncate dropped, is not held.
//!   All laws of KVStore hold where most_rows() is capacity() and no state was held.
//!   A SharingKVStore adopts, beyond the rows that the sequence holds, only a beginning at whose end a state was left;
//!   after fork(from, to), both sequences hold the same states.
//! Models
//!   recurrent_kv, paged_recurrent_kv
//! Source      Dao and Gu, Transformers are SSMs (2024), for the state; Wu et al., Snakes and ladders (2024), for rows
//!             instead of states of a tree's nodes
template <class StoreT>
concept RecurrentStore = KVStore<StoreT> && detail::HasStateAt<StoreT> && detail::HasHoldState<StoreT> &&
    detail::HasParents<StoreT> && detail::HasRoomForRows<StoreT>;

namespace detail {

// Number of rows that a sequence may have after its latest state and still go on: half of most_rows(), so that the next
// pass has the other half; or all of them, if there is room for the whole capacity.
template <RecurrentStore StoreT>
std::int32_t most_behind(const StoreT& kv) {
  return kv.most_rows() < kv.capacity() ? kv.most_rows() / 2 : kv.most_rows();
}

}  // namespace detail

//! Number of committed rows that a sequence would have after truncate(sequence, n).
//!
//! Errors      the store's error if it has no such sequence
template <RecurrentStore StoreT>
std::int32_t rows_after_truncate(const StoreT& kv, std::int32_t sequence, std::int32_t n) {
  const std::int32_t size = kv.size(sequence), rows = std::clamp(n, std::int32_t{0}, size);
  if (rows == size) return rows;
  const std::int32_t state = kv.state_at(sequence, rows);
  return state >= 0 && rows - state <= detail::most_behind(kv) ? rows : 0;
}

//! Checks that a store with states has room for the rows of two passes of n_pass tokens, since a state may be one pass
//! behind; for as many rows as its capacity if that is less.
//!
//! Errors      option_error where it has less
template <KVStore KVStoreT>
void require_rows(const KVStoreT& kv, std::int32_t n_pass) {
  if constexpr (RecurrentStore<KVStoreT>) {
    const std::int32_t least = (std::min)(2 * n_pass, kv.capacity());
    if (kv.most_rows() < least) {
      raise<option_error>("option rows is ", kv.most_rows(), ", but passes of ", n_pass, " tokens need ", least,
                          ": a recurrent state may be one pass behind.");
    }
  }
}

}  // namespace espalier
