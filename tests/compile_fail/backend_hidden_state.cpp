// expect: backend's members hidden_size and hidden_state cannot both be called
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::backend {
  std::int32_t hidden_size() const;
#ifdef ESPALIER_VALID
  std::span<const float> hidden_state(std::int32_t row) const;
#else
  std::span<const double> hidden_state(std::int32_t row) const;
#endif
};

static_assert(parts::fit<parts::drafter, parts::policy, parts::verifier, archetypes::kv_store, candidate>());
