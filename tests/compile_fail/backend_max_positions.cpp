// expect: backend's member max_positions cannot be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::backend {
#ifdef ESPALIER_VALID
  std::int32_t max_positions() const;
#else
  static constexpr std::int32_t max_positions = 2048;
#endif
};

static_assert(parts::fit<parts::drafter, parts::policy, parts::verifier, archetypes::kv_store, candidate>());
