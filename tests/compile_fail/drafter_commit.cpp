// expect: FollowsText
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/drafter.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::drafter;
#else
struct candidate : archetypes::drafter {
  void commit(espalier::verdict);  // a path of which tree?
};
#endif

static_assert(espalier::Drafter<candidate>);
