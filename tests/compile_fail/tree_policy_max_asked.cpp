// expect: policy's members max_asked and was cannot both be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : parts::policy {
  std::int32_t max_asked() const;
#ifdef ESPALIER_VALID
  std::span<const espalier::node_id> was() const;
#else
  std::span<const espalier::node_id> was;
#endif
};

static_assert(parts::fit<parts::drafter, candidate>());
