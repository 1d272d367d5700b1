// expect: HasStateAt
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/kv_store.hpp"

struct candidate : archetypes::recurrent_store {
#ifndef ESPALIER_VALID
  std::int32_t state_at(std::int32_t n) const;  // of which sequence?
#endif
};

static_assert(espalier::RecurrentStore<candidate>);
