// expect: argmax_only is no static constexpr bool
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : parts::verifier {
#ifdef ESPALIER_VALID
  static constexpr bool argmax_only = true;
#else
  bool argmax_only = true;
#endif
};

static_assert(parts::fit<parts::drafter, parts::policy, candidate>());
