// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/llama_backend.cpp
#pragma once

#include <concepts>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/recurrent_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/kv_store/recurrent_shape.hpp"

namespace espalier {

//! A KV store whose rows lie in host memory.
//!
//! Minimal definition
//!   KVStore, and
//!   key(layer, sequence, slot), value(layer, sequence, slot) -> float*   the row, [n_kv_heads * head_dim]
//! Laws
//!   Both may be called from several threads at once, and do not throw.
//! Models
//!   contiguous_kv, paged_kv, sink_window_kv, recurrent_kv
template <class KVStoreT>
concept HostKVStore = KVStore<KVStoreT> && requires(KVStoreT& kv, int layer, int sequence, int slot) {
  { kv.key(layer, sequence, slot) } -> std::same_as<float*>;
  { kv.value(layer, sequence, slot) } -> std::same_as<float*>;
};

//! A store for recurrent layers whose rows and states lie in host memory.
//!
//! Minimal definition
//!   HostKVStore, in which `layer` counts the attention layers alone; RecurrentStore; and, counting the recurrent
//!   layers alone,
//!   shape() -> recurrent_shape
//!   kept_row(layer, sequence, slot) -> float*           the slot's row, [shape().row_size]
//!   state(layer, sequence, n) -> const float*           the state held after n slots, [shape().state_size]; null for
//!                                                       n = 0
//!   spare_state(layer, sequence, from) -> float*        memory for the state after n slots, to be written before
//!                                                       hold_state(sequence, from, n)
//! Laws
//!   The functions that return memory may be called from several threads at once, and do not throw.
//! Models
//!   recurrent_kv, paged_recurrent_kv
template <class StoreT>
concept HostRecurrentStore = HostKVStore<StoreT> && RecurrentStore<StoreT> &&
    requires(StoreT& kv, int layer, int sequence, int slot) {
  { kv.shape() } -> std::convertible_to<recurrent_shape>;
  { kv.kept_row(layer, sequence, slot) } -> std::same_as<float*>;
  { kv.state(layer, sequence, slot) } -> std::same_as<const float*>;
  { kv.spare_state(layer, sequence, slot) } -> std::same_as<float*>;
};

namespace detail {

// Checks that the store keeps the states of the model. Errors: input_error if it keeps none, or states of another
// shape.
template <class KVStoreT>
void check_recurrent(const KVStoreT& kv, const recurrent_shape& shape) {
  if constexpr (requires {
                  { kv.shape() } -> std::convertible_to<recurrent_shape>;
                }) {
    const recurrent_shape held = kv.shape();
    if (held == shape) return;
    raise<input_error>("the cache keeps states of ", held.layers, " recurrent layers of ", held.state_size,
                       " floats, rows of ", held.row_size, ", but the model has ", shape.layers, " of ",
                       shape.state_size, ", rows of ", shape.row_size, ".");
  }
  if (shape.layers > 0) {
    raise<input_error>("the model has ", shape.layers, " recurrent layers, but the cache keeps keys and values alone: ",
                       "it needs one that keeps states, such as recurrent_kv.");
  }
}

}  // namespace detail

}  // namespace espalier
