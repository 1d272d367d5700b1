// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/concepts/recurrent_store.hpp"

namespace archetypes {

//! A KVStore with nothing superfluous: for compiling only.
struct kv_store {
  std::int32_t size(std::int32_t sequence) const;
  std::int32_t capacity() const;
  std::int32_t append(std::int32_t sequence, std::int32_t n);
  std::int32_t commit(std::int32_t sequence, std::span<const std::int32_t> kept);
  void truncate(std::int32_t sequence, std::int32_t n);
  bool compacts() const;
};
static_assert(espalier::KVStore<kv_store>);

//! The same of a SharingKVStore.
struct sharing_kv_store : kv_store {
  std::span<const espalier::token_id> prefix(std::int32_t sequence) const;
  std::uint64_t version(std::int32_t sequence) const;
  void remember(std::int32_t sequence, std::int32_t first, std::span<const espalier::token_id> tokens);
  std::int32_t adopt(std::int32_t sequence, std::span<const espalier::token_id> tokens);
  void fork(std::int32_t from, std::int32_t to);
  std::int32_t n_pages() const;
  std::int32_t page_size() const;
  std::int32_t n_free() const;
};
static_assert(espalier::PrefixKVStore<sharing_kv_store> && !espalier::PrefixKVStore<kv_store>);
static_assert(espalier::SharingKVStore<sharing_kv_store>);

//! The same of a WindowedKVStore.
struct windowed_kv_store : kv_store {
  std::int32_t held(std::int32_t sequence) const;
  std::int32_t until_slide(std::int32_t sequence) const;
  std::int32_t scratch() const;
};
static_assert(espalier::WindowedKVStore<windowed_kv_store> && !espalier::WindowedKVStore<kv_store>);

//! The same of a RecurrentStore.
struct recurrent_store : kv_store {
  std::int32_t state_at(std::int32_t sequence, std::int32_t n) const;
  void hold_state(std::int32_t sequence, std::int32_t from, std::int32_t n);
  std::int32_t parent(std::int32_t sequence, std::int32_t slot) const;
  void set_parent(std::int32_t sequence, std::int32_t slot, std::int32_t parent);
  std::int32_t most_rows() const;
};
static_assert(espalier::RecurrentStore<recurrent_store> && !espalier::RecurrentStore<kv_store>);

}  // namespace archetypes
