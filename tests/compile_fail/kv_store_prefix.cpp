// expect: store's members prefix, version and remember cannot all be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::kv_store {
  std::span<const espalier::token_id> prefix(std::int32_t sequence) const;
#ifdef ESPALIER_VALID
  std::uint64_t version(std::int32_t sequence) const;
  void remember(std::int32_t sequence, std::int32_t first, std::span<const espalier::token_id> tokens);
#else
  void remember(std::span<const espalier::token_id> tokens);
#endif
};

static_assert(parts::fit<parts::drafter, parts::policy, parts::verifier, candidate>());
