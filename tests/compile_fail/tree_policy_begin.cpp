// expect: Begins
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/tree_policy.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::tree_policy;
#else
struct candidate : archetypes::tree_policy {
  void begin(espalier::tree<>&);  // what is wanted first?
};
#endif

static_assert(espalier::TreePolicy<candidate, archetypes::step_drafter, archetypes::chance>);
