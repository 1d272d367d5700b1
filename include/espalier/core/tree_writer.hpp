// SPDX-License-Identifier: BSL-1.0
// Tested by tests/core/tree.cpp
#pragma once

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_view.hpp"

namespace espalier {

//! The numbers of nodes and draws that a tree has, and the number of draws it may have.
struct tree_size {
  std::int32_t n_nodes = 0;  //!< number of nodes, root included
  std::int32_t n_draws = 0;
  std::int32_t limit = 0;  //!< draws that the tree may hold this round

  //! Number of draws that there is still room for, if `most` are allowed in all.
  ESPALIER_HOST_DEVICE std::int32_t left(std::int32_t most = INT32_MAX) const {
    const std::int32_t end = limit < most ? limit : most;
    return n_draws < end ? end - n_draws : 0;
  }
};

//! Write access to the arrays of a tree, in any memory: trees grow by it on host and device alike. Trivially copyable.
//!
//! Shapes      token, parent, depth, log_prob, path_log_prob, first_draw, last_draw: [capacity + 1], node 0 the root;
//!             next_draw, drawn_node: [capacity]; size [1]
//! Law         as tree_view; draws keep the order they were made in
//! Pre         one thread writes at a time, in the memory space of the arrays
struct tree_writer {
  token_id* token = nullptr;
  node_id* parent = nullptr;
  std::int32_t* depth = nullptr;
  float* log_prob = nullptr;
  float* path_log_prob = nullptr;
  std::int32_t* first_draw = nullptr;
  std::int32_t* last_draw = nullptr;
  std::int32_t* next_draw = nullptr;
  node_id* drawn_node = nullptr;
  tree_size* size = nullptr;

  //! Starts a new round with the root alone, in which the tree may hold `limit` draws.
  ESPALIER_HOST_DEVICE void reset(token_id root_token, std::int32_t limit) const {
    *size = {0, 0, limit};
    add_node(no_node, root_token, 0.0F);
  }

  //! Adds a child that its parent does not have yet. Returns the new node, or no_node if the limit is reached.
  //!
  //! Complexity  O(1)
  //! Pre         no child of the parent has this token
  ESPALIER_HOST_DEVICE node_id append(node_id above, token_id t, float log_probability) const {
    if (full()) return no_node;
    const node_id node = add_node(above, t, log_probability);
    add_draw(above, node);
    return node;
  }

  //! Records one draw from the parent's distribution: a token that was drawn there before keeps its node, which the new
  //! draw then shares. Returns the node, new or shared, or no_node if the limit is reached.
  //!
  //! Complexity  O(draws made at the parent)
  ESPALIER_HOST_DEVICE node_id draw(node_id above, token_id t, float log_probability) const {
    if (full()) return no_node;
    const node_id known = view().find_child(above, t);
    const node_id node = known != no_node ? known : add_node(above, t, log_probability);
    add_draw(above, node);
    return node;
  }

  ESPALIER_HOST_DEVICE std::int32_t limit() const { return size->limit; }
  ESPALIER_HOST_DEVICE bool full() const { return size->n_draws >= size->limit; }
  ESPALIER_HOST_DEVICE std::int32_t left(std::int32_t most = INT32_MAX) const { return size->left(most); }

  //! A view of the nodes that are there now, not of later ones; valid until the next reset() or the end of the arrays'
  //! life.
  ESPALIER_HOST_DEVICE tree_view view() const {
    return {size->n_nodes, size->n_draws, token,      parent,    depth,
            log_prob,      path_log_prob, first_draw, next_draw, drawn_node};
  }

  //! Writes all values of a node but its draws, for code that writes many nodes at once.
  ESPALIER_HOST_DEVICE void put(node_id node, node_id above, token_id t, float log_probability, std::int32_t its_depth,
                                float path_log_probability) const {
    token[node] = t;
    parent[node] = above;
    depth[node] = its_depth;
    log_prob[node] = log_probability;
    path_log_prob[node] = path_log_probability;
  }

 private:
  ESPALIER_HOST_DEVICE node_id add_node(node_id above, token_id t, float log_probability) const {
    const node_id node = size->n_nodes++;
    const bool is_root = above == no_node;
    put(node, above, t, log_probability, is_root ? 0 : depth[above] + 1,
        is_root ? log_probability : path_log_prob[above] + log_probability);
    first_draw[node] = last_draw[node] = -1;
    return node;
  }

  ESPALIER_HOST_DEVICE void add_draw(node_id above, node_id node) const {
    const std::int32_t n = size->n_draws++;
    drawn_node[n] = node;
    next_draw[n] = -1;
    (last_draw[above] < 0 ? first_draw[above] : next_draw[last_draw[above]]) = n;
    last_draw[above] = n;
  }
};

}  // namespace espalier
