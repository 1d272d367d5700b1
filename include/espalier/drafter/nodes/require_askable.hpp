// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier::detail {

// Whether a StepDrafter is asked about the root, which opens a round and comes alone. Room is that of reserve().
inline bool opens_round(std::span<const node_id> nodes, std::size_t room) {
  if (room == 0) raise<input_error>("the drafter is asked before reserve() has made room for a round.");
  return nodes.size() == 1 && nodes[0] == root_node;
}

// What else it may be asked about: a node of the tree that there is room for, once a round, after its parent.
// is_asked(node) tells what was asked about.
template <class IsAskedT>
void require_askable(tree_view tree, node_id u, std::size_t room, const IsAskedT& is_asked) {
  if (u < 0 || u >= tree.n_nodes) {
    raise<input_error>("the drafter is asked about node ", u, ", but the tree has the nodes 0 to ", tree.n_nodes - 1,
                       ".");
  }
  if (u == root_node)
    raise<input_error>("the drafter is asked about node 0, the root, among others; it comes alone, and opens a round.");
  if (static_cast<std::size_t>(u) >= room) {
    raise<input_error>("the drafter is asked about node ", u, ", but reserve() made room for the nodes 0 to ", room - 1,
                       ".");
  }
  if (is_asked(u)) raise<input_error>("the drafter is asked about node ", u, " twice in one round.");
  if (!is_asked(tree.parent[u])) {
    raise<input_error>("the drafter is asked about node ", u, " before its parent, node ", tree.parent[u], ".");
  }
}

}  // namespace espalier::detail
