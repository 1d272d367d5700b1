// expect: drafter's member rows does not give rows by node
// SPDX-License-Identifier: BSL-1.0
#include "parts.hpp"

struct candidate : archetypes::sequence_drafter {
#ifdef ESPALIER_VALID
  espalier::node_rows<float> rows() const;
#else
  std::span<const float> rows() const;
#endif
};

static_assert(parts::fit<candidate>());
