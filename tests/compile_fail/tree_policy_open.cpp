// expect: policy's member open cannot be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : parts::policy {
#ifdef ESPALIER_VALID
  void open(espalier::round_start);
#else
  void open(std::int32_t length);
#endif
};

static_assert(parts::fit<parts::drafter, candidate>());
