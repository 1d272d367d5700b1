// expect: drafter's member read_prompt cannot be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::step_drafter {
#ifdef ESPALIER_VALID
  bool read_prompt(std::int32_t n);
#else
  void read_prompt(std::int32_t n);
#endif
};

static_assert(parts::fit<candidate>());
