// expect: this drafter reads hidden states, which this backend does not offer
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::feature_step_drafter {
#ifdef ESPALIER_VALID
  void read(const archetypes::backend&, std::span<const std::int32_t>);
#else
  void read(const archetypes::backend&, const std::int32_t* rows);
#endif
};

static_assert(parts::fit<candidate>());
