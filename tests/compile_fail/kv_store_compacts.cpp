// expect: SaysWhetherItCompacts
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/kv_store.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::kv_store;
#else
struct candidate : archetypes::kv_store {
  void compacts() const;  // yes or no?
};
#endif

static_assert(espalier::KVStore<candidate>);
