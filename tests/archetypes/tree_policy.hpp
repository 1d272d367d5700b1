// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>
#include <span>

#include "archetypes/chance.hpp"
#include "archetypes/drafter.hpp"
#include "espalier/concepts/tree_policy.hpp"

namespace archetypes {

//! A TreePolicy with nothing superfluous: for compiling only.
struct tree_policy {
  static constexpr espalier::regime sampling = espalier::regime::iid;
  std::int32_t max_nodes() const;
  std::span<const espalier::node_id> begin(espalier::tree<>&);
  std::span<const espalier::node_id> take(espalier::tree<>&, espalier::node_rows<float>, chance&);
  void observe(espalier::tree_view, espalier::verdict);
};
static_assert(espalier::TreePolicy<tree_policy, step_drafter, chance>);

}  // namespace archetypes
