// expect: member correct cannot be called as correct
// SPDX-License-Identifier: BSL-1.0
#include "espalier/drafter/factorised.hpp"
#include "parts.hpp"

struct candidate : archetypes::block_drafter {
#ifdef ESPALIER_VALID
  void correct(espalier::tree_view, espalier::node_id, std::span<float> row);
#else
  void correct(espalier::tree_view, espalier::node_id, std::span<double> row);
#endif
};

static_assert(sizeof(espalier::factorised<candidate>) > 0);
