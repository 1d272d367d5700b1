// expect: rows depend on more than the tokens of their path
// SPDX-License-Identifier: BSL-1.0
#include <cstdint>

#include "archetypes/drafter.hpp"
#include "espalier/decoder/ahead.hpp"

#ifdef ESPALIER_VALID
struct drafter : archetypes::step_drafter {
  static constexpr bool follows_path = true;
  std::int32_t max_rows() const;
};
#else
using drafter = archetypes::step_drafter;  // a later round may have other rows for the same tokens
#endif

static_assert(sizeof(espalier::ahead<drafter>) > 0);
