// expect: verifier's member reserve cannot be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : parts::verifier {
#ifdef ESPALIER_VALID
  void reserve(std::int32_t max_nodes, std::int32_t vocab);
#else
  void reserve(std::int32_t max_nodes);
#endif
};

static_assert(parts::fit<parts::drafter, parts::policy, candidate>());
