// SPDX-License-Identifier: BSL-1.0
// Tested by tests/drafter/factorised.cpp
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

//! Checks that every StepDrafter makes of the nodes that it is asked about, and renumbering of nodes.
namespace espalier::detail {

// True if a StepDrafter is asked about the root alone, which opens a round. `room` is the number of nodes, root
// included, that reserve() made room for.
//
// Errors      input_error before reserve()
inline bool opens_round(std::span<const node_id> nodes, std::size_t room) {
  if (room == 0) raise<input_error>("the drafter is asked before reserve() has made room for a round.");
  return nodes.size() == 1 && nodes[0] == root_node;
}

// Checks that a StepDrafter may be asked about this node: it must be a node of the tree other than the root, reserve()
// must have made room for it (`room` nodes, root included), and its parent must have been asked about in this round,
// but not the node itself. is_asked(node) tells whether a node was asked about.
//
// Errors      input_error that says what is wrong
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

// Turns a list that is indexed by the nodes of an old tree into one that is indexed by the nodes of the tree that was
// built anew from it: node i was node was[i] before (see StepDrafter). -1 in a list stands for nothing. The spare list
// must have the same length; nothing is allocated.
//
// Errors      input_error for a node, new or old, for which there is no room
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
