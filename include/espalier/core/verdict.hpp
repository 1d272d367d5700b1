// SPDX-License-Identifier: BSL-1.0
// Tested by tests/core/tree.cpp
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/static/list.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

//! The decision of a verifier: the path from the root to `accepted` is committed, then `token`, which was drawn from
//! the target.
struct verdict {
  node_id accepted = root_node;
  token_id token = 0;

  friend ESPALIER_HOST_DEVICE bool operator==(const verdict& a, const verdict& b) {
    return a.accepted == b.accepted && a.token == b.token;
  }
};

//! The verdict that commits only the first n tokens of v. If v has more than n tokens, the n-th of them, a drafted one,
//! takes the place of the target's own token.
//!
//! Pre         1 <= n <= depth of v.accepted + 1
ESPALIER_HOST_DEVICE inline verdict cut(tree_view tree, verdict v, std::int32_t n) {
  if (n > tree.depth[v.accepted]) return v;
  const node_id last = tree.ancestor_at(v.accepted, n);
  return {tree.parent[last], tree.token[last]};
}

namespace detail {

// Checks that a verdict accepts a node of the tree.
inline void require_accepted(tree_view tree, verdict v) {
  if (v.accepted < 0 || v.accepted >= tree.n_nodes) {
    raise<input_error>("the verdict accepts node ", v.accepted, ", but the tree has the nodes 0 to ", tree.n_nodes - 1,
                       ": it is a verdict on another tree.");
  }
}

}  // namespace detail

//! Appends the tokens that a verdict commits to the text.
//!
//! Errors      input_error if the tree has no node v.accepted; the text is as it was then
inline void append_committed(detail::list<token_id>& text, tree_view tree, verdict v) {
  detail::require_accepted(tree, v);
  const std::size_t old = text.size();
  text.resize(old + static_cast<std::size_t>(tree.depth[v.accepted]) + 1, v.token);
  for (node_id u = v.accepted; u != root_node; u = tree.parent[u])
    text[old + static_cast<std::size_t>(tree.depth[u]) - 1] = tree.token[u];
}

//! Appends the numbers that the nodes of the accepted path have in `number_of`, root first: the rows to keep, if the
//! numbers are the nodes' rows in the target's pass; the slots to keep, if they are the nodes' cache slots.
//!
//! Shapes      number_of [n_nodes]
//! Errors      input_error if the tree has no node v.accepted, or number_of has no number for some node; nothing is
//!             appended then
inline void append_path(detail::list<std::int32_t>& numbers, tree_view tree, verdict v,
                        std::span<const std::int32_t> number_of) {
  detail::require_accepted(tree, v);
  if (number_of.size() < static_cast<std::size_t>(tree.n_nodes)) {
    raise<input_error>("there are ", number_of.size(), " numbers of nodes, but the tree has ", tree.n_nodes, " nodes.");
  }
  const std::size_t old = numbers.size();
  numbers.resize(old + static_cast<std::size_t>(tree.depth[v.accepted]) + 1);
  for (node_id u = v.accepted; u != no_node; u = tree.parent[u])
    numbers[old + static_cast<std::size_t>(tree.depth[u])] = number_of[static_cast<std::size_t>(u)];
}

}  // namespace espalier
