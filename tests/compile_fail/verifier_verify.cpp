// expect: Verifies
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/verifier.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::verifier;
#else
struct candidate : archetypes::verifier {
  espalier::node_id verify(espalier::tree_view, espalier::node_rows<float>, archetypes::target_rows&,
                           archetypes::chance&);  // and the target's own token?
};
#endif

static_assert(espalier::Verifier<candidate, espalier::node_rows<float>, archetypes::target_rows, archetypes::chance>);
