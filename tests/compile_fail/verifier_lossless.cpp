// expect: NamesLossless
// SPDX-License-Identifier: BSL-1.0
#include "archetypes/verifier.hpp"

#ifdef ESPALIER_VALID
using candidate = archetypes::verifier;
#else
struct candidate : archetypes::verifier {
  static constexpr bool lossless = true;  // for which regimes?
};
#endif

static_assert(espalier::Verifier<candidate, espalier::node_rows<float>, archetypes::target_rows, archetypes::chance>);
