// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"

namespace espalier::cuda::detail {

// A draw of an ordered list, with its position relative to the other draws.
struct listed_draw {
  node_id above = no_node;  // the node that it is drawn from; no_node: there is no draw
  token_id token = -1;
  float log_prob = 0;
  std::int32_t depth = 0;
  float path_log_prob = 0;
  std::int32_t number = 0;  // number of draws before it in the list
  std::int32_t node = 0;    // number of new nodes that come before its own node
  std::int32_t next = -1;   // the next draw from the same node, or -1
  bool is_first = true;     // whether it is the first draw from its node
  bool is_new = true;       // whether no draw before it has the same node
  bool is_leaf = true;      // whether nothing is drawn from its own node

  // Returns a draw from node `above` of the tree; its position in the list is not set.
  __device__ static listed_draw of(const tree_writer& tree, node_id above, token_id token, float log_prob) {
    return {above, token, log_prob, tree.depth[above] + 1, tree.path_log_prob[above] + log_prob};
  }
};

// Appends a list of draws to a tree of the given size; nodes and draws are then linked as if tree_writer had appended
// them one after the other. The list has n_entries entries, of which n_draws are draws, with n_nodes new nodes. Called
// by a block; entry i of the list, list(i), is read by thread i modulo the number of threads. All draws from a node are
// in one list. No barrier.
//
// Pre         all threads have read *tree.size, and passed a barrier since
template <class ListT>
__device__ void append_draws(const tree_writer& tree, const tree_size& size, std::int32_t n_entries,
                             std::int32_t n_nodes, std::int32_t n_draws, const ListT& list) {
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n_entries; i += static_cast<std::int32_t>(blockDim.x)) {
    const listed_draw d = list(i);
    if (d.above == no_node) continue;
    const node_id node = size.n_nodes + d.node;
    const std::int32_t draw = size.n_draws + d.number;
    if (d.is_new) tree.put(node, d.above, d.token, d.log_prob, d.depth, d.path_log_prob);
    if (d.is_new && d.is_leaf) tree.first_draw[node] = tree.last_draw[node] = -1;
    tree.drawn_node[draw] = node;
    tree.next_draw[draw] = d.next < 0 ? -1 : size.n_draws + d.next;
    if (d.is_first) tree.first_draw[d.above] = draw;
    if (d.next < 0) tree.last_draw[d.above] = draw;
  }
  if (threadIdx.x != 0) return;
  tree.size->n_nodes = size.n_nodes + n_nodes;
  tree.size->n_draws = size.n_draws + n_draws;
}

// Draws in any order, as tree_writer::draw takes them: draws of the same token from the same node share a node. Each
// thread has one draw, in a block of `most` threads.
class mixed_draws {
 public:
  static constexpr std::int32_t most = 64;

  struct memory {
    node_id above[most];
    token_id token[most];
    std::int32_t leader[most];  // the first draw of the same token from the same node
  };

  // Takes the draw of this thread; `above` is no_node if it has none. Two barriers.
  __device__ mixed_draws(memory& shared, node_id above, token_id token) : shared_(shared) {
    const auto i = static_cast<std::int32_t>(threadIdx.x);
    shared.above[i] = above;
    shared.token[i] = token;
    n_draws_ = __syncthreads_count(above != no_node);
    while (shared.above[leader_] != above || shared.token[leader_] != token)
      ++leader_;
    shared.leader[i] = leader_;
    leads_ = above != no_node && leader_ == i;
    n_nodes_ = __syncthreads_count(leads_);
  }

  __device__ std::int32_t n_draws() const { return n_draws_; }
  __device__ std::int32_t n_nodes() const { return n_nodes_; }
  // True if this thread has a draw, and no draw before it has the same node.
  __device__ bool leads() const { return leads_; }

  // Returns this thread's draw with its position in the list filled in.
  __device__ listed_draw placed(listed_draw own) const {
    const auto i = static_cast<std::int32_t>(threadIdx.x);
    own.is_new = leads_;
    for (std::int32_t j = 0, n = 0; n < n_draws_; ++j) {
      if (shared_.above[j] == no_node) continue;
      if (j == i) own.number = n;
      if (j < i && shared_.above[j] == own.above) own.is_first = false;
      if (j > i && shared_.above[j] == own.above && own.next < 0) own.next = n;
      if (j < leader_ && shared_.leader[j] == j) ++own.node;
      ++n;
    }
    return own;
  }

 private:
  const memory& shared_;
  std::int32_t n_draws_ = 0;
  std::int32_t n_nodes_ = 0;
  std::int32_t leader_ = 0;
  bool leads_ = false;
};

}  // namespace espalier::cuda::detail
