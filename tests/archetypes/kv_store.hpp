// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "espalier/concepts/kv_store.hpp"

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

}  // namespace archetypes
