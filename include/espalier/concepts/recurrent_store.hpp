// SPDX-License-Identifier: BSL-1.0
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

//! A store of a model whose cache is a state and not rows, in all layers or in some: Mamba-2 and the like.
//!
//! A state after n tokens says all that the model knows of them; it can be computed from one after fewer tokens and the
//! rows between, but not the other way round. So the store holds few states, each after a number of slots, and the
//! rows of the slots after them. A pass begins at a state that all of its rows see, computes what branches from it,
//! node by node, in no memory of the store, and leaves one state: that after the tokens that are certain to stay. To
//! commit a path is to keep its rows, which the next pass goes through once more; to roll back is to forget. Nothing is
//! computed for either.
//!
//! Minimal definition, besides KVStore
//!   state_at(sequence, n) -> int       the most slots, n at most, whose state is held with all rows after it; 0 where
//!                                      that is the beginning, whose state is zero; -1 where there is none
//!   hold_state(sequence, from, n)      a pass has left the state after the first n slots, which it computed from that
//!                                      after `from`, at most size(sequence). Both are held then, and no other; `from`
//!                                      alone where n is `from`
//!   parent(sequence, slot) -> int      the slot before this one on its path: slot - 1 of a committed one, and of a
//!                                      scratch slot what set_parent said; -1 for slot 0
//!   set_parent(sequence, slot, parent)
//!   most_rows() -> int                 rows after a state that there is room for, scratch included
//!   append(sequence, n)                -1 also where the rows after state_at(sequence, size(sequence)) would be more
//!                                      than most_rows()
//!   truncate(sequence, n)              of less than size(sequence) keeps nothing where state_at(sequence, n) is -1,
//!                                      or, with most_rows() below capacity(), more than half of most_rows() before n:
//!                                      no pass had room then, and the text is to be read again
//! Laws
//!   state_at(sequence, size(sequence)) is never -1. A state is held on while what is committed begins with the slots
//!   that it is of, and longest the latest; what a commit moved or dropped, and what truncate dropped, leaves none
//!   after it.
//!   Where most_rows() is capacity() and no state was held, all laws of KVStore hold.
//! Models
//!   recurrent_kv
//! Source      Dao and Gu, Transformers are SSMs (2024), for the state; Wu et al., Snakes and ladders (2024), for rows
//!             instead of states of a tree's nodes
template <class StoreT>
concept RecurrentStore = KVStore<StoreT> && detail::HasStateAt<StoreT> && detail::HasHoldState<StoreT> &&
    detail::HasParents<StoreT> && detail::HasRoomForRows<StoreT>;

//! What rounds need of a store with states: rows of a pass of this size after those of the one before it, which is the
//! most that a state may be behind.
//!
//! Errors      option_error where there is no room for so many
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
