// expect: HasCommit
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/kv_store.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::kv_store;
#else
struct candidate : archetypes::kv_store {
  void commit(std::int32_t sequence, std::span<const std::int32_t> kept);  // how many were kept?
};
#endif

static_assert(espalier::KVStore<candidate>);
