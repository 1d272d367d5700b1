// expect: HasRoom
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/drafter.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::drafter;
#else
struct candidate : archetypes::drafter {
  void capacity() const;  // how much?
};
#endif

static_assert(espalier::Drafter<candidate>);
