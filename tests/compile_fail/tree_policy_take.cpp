// expect: Takes
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/tree_policy.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::tree_policy;
#else
struct candidate : archetypes::tree_policy {
  std::span<const espalier::node_id> take(espalier::tree<>&, espalier::token_run,
                                          archetypes::chance&);  // from another kind of drafter
};
#endif

static_assert(espalier::TreePolicy<candidate, archetypes::step_drafter, archetypes::chance>);
