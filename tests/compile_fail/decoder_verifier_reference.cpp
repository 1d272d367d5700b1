// expect: policy and verifier belong to the decoder
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

#ifdef ESPALIER_VALID
using verifier = parts::verifier;
#else
using verifier = parts::verifier&;
#endif

static_assert(parts::fit<parts::drafter, parts::policy, verifier>());
