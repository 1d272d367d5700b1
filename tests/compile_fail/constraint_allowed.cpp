// expect: allowed
// SPDX-License-Identifier: BSL-1.0
#include "espalier/concepts/constraint.hpp"

struct candidate {
  using state_type = int;
  int start();
  int advance(int state, espalier::token_id);
#ifdef ESPALIER_VALID
  std::span<const std::uint32_t> allowed(int state);
#else
  bool allowed(int state, espalier::token_id);  // one token after the other is too slow
#endif
};

static_assert(espalier::Constraint<candidate>);
