// expect: policy and verifier belong to the decoder
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

#ifdef ESPALIER_VALID
using policy = parts::policy;
#else
using policy = parts::policy&;
#endif

static_assert(parts::fit<parts::drafter, policy>());
