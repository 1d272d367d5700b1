// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>

#include "espalier/concepts/kv_store.hpp"

namespace espalier {

//! A KV store whose rows lie in host memory.
//!
//! Minimal definition
//!   KVStore, and
//!   key(layer, sequence, slot), value(layer, sequence, slot) -> float*   the row, [n_kv_heads * head_dim]
//! Laws
//!   Both may be called from several threads at once, and do not throw.
//! Models
//!   contiguous_kv, paged_kv, sink_window_kv
template <class KVStoreT>
concept HostKVStore = KVStore<KVStoreT> && requires(KVStoreT& kv, int layer, int sequence, int slot) {
  { kv.key(layer, sequence, slot) } -> std::same_as<float*>;
  { kv.value(layer, sequence, slot) } -> std::same_as<float*>;
};

}  // namespace espalier
