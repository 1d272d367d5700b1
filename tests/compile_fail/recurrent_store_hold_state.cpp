// expect: HasHoldState
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/kv_store.hpp"

struct candidate : archetypes::recurrent_store {
#ifndef ESPALIER_VALID
  void hold_state(std::int32_t sequence, std::int32_t n);  // computed from which?
#endif
};

static_assert(espalier::RecurrentStore<candidate>);
