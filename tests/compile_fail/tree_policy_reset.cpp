// expect: policy's member reset cannot be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : parts::policy {
#ifdef ESPALIER_VALID
  void reset();
#else
  void reset(std::span<const espalier::token_id> prompt);
#endif
};

static_assert(parts::fit<parts::drafter, candidate>());
