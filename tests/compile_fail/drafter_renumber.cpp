// expect: drafter's member renumber cannot be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::step_drafter {
#ifdef ESPALIER_VALID
  void renumber(std::span<const espalier::node_id> was);
#else
  void renumber(espalier::node_id was, espalier::node_id now);
#endif
};

static_assert(parts::fit<candidate>());
