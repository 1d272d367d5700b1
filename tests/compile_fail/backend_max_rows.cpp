// expect: backend's member max_rows cannot be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::backend {
#ifdef ESPALIER_VALID
  std::int32_t max_rows() const;
#else
  std::int32_t max_rows();
#endif
};

static_assert(parts::fit<parts::drafter, parts::policy, parts::verifier, archetypes::kv_store, candidate>());
