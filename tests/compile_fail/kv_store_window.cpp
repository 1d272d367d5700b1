// expect: store's members held, until_slide and scratch cannot all be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::kv_store {
  std::int32_t until_slide(std::int32_t sequence) const;
  std::int32_t scratch() const;
#ifdef ESPALIER_VALID
  std::int32_t held(std::int32_t sequence) const;
#else
  std::int32_t held() const;
#endif
};

static_assert(parts::fit<parts::drafter, parts::policy, parts::verifier, candidate>());
