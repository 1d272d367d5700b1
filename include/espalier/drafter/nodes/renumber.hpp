// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"

namespace espalier::detail {

// Makes a list by node, -1 where there is nothing, one by the nodes of a tree that was built anew: see StepDrafter. The
// spare list is as long, so that nothing is allocated.
inline void renumber(detail::list<std::int32_t>& of_node, detail::list<std::int32_t>& spare,
                     std::span<const node_id> was) {
  std::fill(spare.begin(), spare.end(), -1);
  const auto room = static_cast<node_id>(spare.size());
  for (std::size_t i = 0; i < was.size(); ++i) {
    if (i >= spare.size() || was[i] < no_node || was[i] >= room) {
      raise<input_error>("node ", i, " is said to have been node ", was[i],
                         ", but reserve() made room for the nodes 0 to ", room - 1, ".");
    }
    spare[i] = was[i] == no_node ? -1 : of_node[static_cast<std::size_t>(was[i])];
  }
  of_node.swap(spare);
}

}  // namespace espalier::detail
