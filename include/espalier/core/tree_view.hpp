// SPDX-License-Identifier: BSL-1.0
// Tested by tests/core/tree.cpp
#pragma once

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"

namespace espalier {

//! Read access to a draft tree, which owns the arrays: trivially copyable, passed by value to functions and kernels.
//!
//! Shapes      token, parent, depth, log_prob, path_log_prob, first_draw: [n_nodes], node 0 the root;
//!             next_draw, drawn_node: [n_draws]
//! Law         parent[u] < u for u > 0; parent[0] = -1; depth[0] = 0
struct tree_view {
  std::int32_t n_nodes = 0;  //!< number of nodes, root included
  std::int32_t n_draws = 0;  //!< number of draws: a token that was drawn twice counts twice; the root does not count
  const token_id* token = nullptr;
  const node_id* parent = nullptr;
  const std::int32_t* depth = nullptr;
  const float* log_prob = nullptr;           //!< log-probability under the draft of the node's token after its path
  const float* path_log_prob = nullptr;      //!< sum of log_prob along the path
  const std::int32_t* first_draw = nullptr;  //!< number of the first draw from the node's distribution, or -1
  const std::int32_t* next_draw = nullptr;   //!< number of the next draw from the same distribution, or -1
  const node_id* drawn_node = nullptr;       //!< the child that the draw chose

  //! The draws made at one node, in the order in which they were made. A draw is given as the child that it chose, so a
  //! child comes once for each draw that chose it.
  struct draw_range {
    struct iterator {
      const std::int32_t* next;
      const node_id* drawn;
      std::int32_t draw;

      ESPALIER_HOST_DEVICE node_id operator*() const { return drawn[draw]; }
      ESPALIER_HOST_DEVICE iterator& operator++() {
        draw = next[draw];
        return *this;
      }
      ESPALIER_HOST_DEVICE bool operator!=(const iterator& other) const { return draw != other.draw; }
    };
    iterator first, last;
    ESPALIER_HOST_DEVICE iterator begin() const { return first; }
    ESPALIER_HOST_DEVICE iterator end() const { return last; }
  };

  //! The draws made at node u.
  ESPALIER_HOST_DEVICE draw_range draws(node_id u) const {
    return {{next_draw, drawn_node, first_draw[u]}, {next_draw, drawn_node, -1}};
  }

  ESPALIER_HOST_DEVICE bool is_leaf(node_id u) const { return first_draw[u] < 0; }

  //! The child of u with this token, or no_node.
  //!
  //! Complexity  O(draws made at u)
  ESPALIER_HOST_DEVICE node_id find_child(node_id u, token_id t) const {
    for (const node_id child : draws(u)) {
      if (token[child] == t) return child;
    }
    return no_node;
  }

  //! The ancestor of u (or u itself) at the given depth.
  //!
  //! Pre         0 <= d <= depth[u]
  ESPALIER_HOST_DEVICE node_id ancestor_at(node_id u, std::int32_t d) const {
    while (depth[u] > d)
      u = parent[u];
    return u;
  }
};

}  // namespace espalier
