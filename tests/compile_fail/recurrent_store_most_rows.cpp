// expect: HasRoomForRows
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/kv_store.hpp"

struct candidate : archetypes::recurrent_store {
#ifndef ESPALIER_VALID
  std::int32_t most_rows(std::int32_t sequence) const;  // another number for each
#endif
};

static_assert(espalier::RecurrentStore<candidate>);
