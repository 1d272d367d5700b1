// expect: HasParents
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/kv_store.hpp"

struct candidate : archetypes::recurrent_store {
#ifndef ESPALIER_VALID
  void parent(std::int32_t sequence, std::int32_t slot) const;
#endif
};

static_assert(espalier::RecurrentStore<candidate>);
