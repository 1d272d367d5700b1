// expect: target_alone is no static constexpr bool
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : parts::verifier {
#ifdef ESPALIER_VALID
  static constexpr bool target_alone = true;
#else
  bool target_alone = true;
#endif
};

static_assert(parts::fit<parts::drafter, parts::policy, candidate>());
