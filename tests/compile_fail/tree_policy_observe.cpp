// expect: Observes
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/tree_policy.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::tree_policy;
#else
struct candidate : archetypes::tree_policy {
  void observe(espalier::verdict);  // a path of which tree?
};
#endif

static_assert(espalier::TreePolicy<candidate, archetypes::step_drafter, archetypes::chance>);
