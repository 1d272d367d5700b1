// expect: drafter's member vocab_size cannot be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::sequence_drafter {
#ifdef ESPALIER_VALID
  std::int32_t vocab_size() const;
#else
  std::int32_t vocab_size();
#endif
};

static_assert(parts::fit<candidate>());
