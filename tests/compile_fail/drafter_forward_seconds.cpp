// expect: drafter's member forward_seconds cannot be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::step_drafter {
#ifdef ESPALIER_VALID
  double forward_seconds() const;
#else
  double forward_seconds();
#endif
};

static_assert(parts::fit<candidate>());
