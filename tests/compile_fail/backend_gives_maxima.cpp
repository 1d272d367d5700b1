// expect: backend's member gives_maxima cannot be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::backend {
#ifdef ESPALIER_VALID
  bool gives_maxima() const;
#else
  bool gives_maxima();
#endif
};

static_assert(parts::fit<parts::drafter, parts::policy, parts::verifier, archetypes::kv_store, candidate>());
