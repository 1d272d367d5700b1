// expect: HasAppend
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/kv_store.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::kv_store;
#else
struct candidate : archetypes::kv_store {
  void append(std::int32_t sequence, std::int32_t n);  // where are the new slots, and did they fit?
};
#endif

static_assert(espalier::KVStore<candidate>);
