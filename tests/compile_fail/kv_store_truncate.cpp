// expect: HasTruncate
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/kv_store.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::kv_store;
#else
struct candidate : archetypes::kv_store {
  void truncate(std::int32_t n);  // of which sequence?
};
#endif

static_assert(espalier::KVStore<candidate>);
