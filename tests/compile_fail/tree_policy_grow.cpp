// expect: Grows
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/tree_policy.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::tree_policy;
#else
struct candidate : archetypes::tree_policy {
  void grow(espalier::tree<>&, archetypes::block_drafter&, archetypes::chance&);  // from another kind of drafter
};
#endif

static_assert(espalier::TreePolicy<candidate, archetypes::drafter, archetypes::chance>);
