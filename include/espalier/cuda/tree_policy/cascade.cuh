// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <type_traits>
#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/regime.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/core/tree.cuh"

namespace espalier::cuda {

namespace detail {

inline constexpr std::int32_t merge_threads = 256;

// Limits on the tree that one of the policies drafts for a text.
struct part_room {
  std::int32_t capacity = 0;  // number of tokens that the policy's drafter can hold
  std::int32_t most = 0;      // largest number of drafted tokens

  // Returns the limit of the text's tree, if the round allows `all` drafted tokens.
  __device__ std::int32_t limit(const text_in_batch& here, std::int32_t all) const {
    const std::int32_t left = capacity - here.text.state->size, room = left > 0 ? left : 0;
    const std::int32_t own = room < most ? room : most;
    return own < all ? own : all;
  }
};

// The merged trees, by place. Their limits are the round's. While the merged trees are made, the texts' own trees hold
// the tokens that the present policy drafts.
//
// Shapes      trees: `words` words from one tree to the next; node_of [places][stride]: the merged tree's node for each
//             drafted node
struct merged_trees {
  tree_writer trees;
  std::ptrdiff_t words;
  node_id* node_of;
  std::int32_t stride;

  __device__ tree_writer tree(std::int32_t place) const { return moved(trees, place * words); }
};

// Opens a round; one thread works for a lane. The merged tree and the first policy's tree become a root alone.
template <class RoomT>
ESPALIER_KERNEL void open_cascade(text_batch texts, merged_trees to, RoomT room) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const token_id root = here.tree.token[root_node];
  const std::int32_t all = here.tree.limit();
  to.tree(here.place).reset(root, all);
  here.tree.reset(root, room.limit(here, all));
}

// Calls f(u) for u = 0 to n - 1 with all threads of a block; thread u modulo merge_threads takes u.
template <class FunctionT>
__device__ void each_node(std::int32_t n, const FunctionT& f) {
  for (auto u = static_cast<node_id>(threadIdx.x); u < n; u += merge_threads)
    f(u);
}

// Finds the merged node of each drafted node. Drafted nodes that the merged tree lacks get the next numbers of the
// merged tree, in the order in which they were drafted, and no_node once the merged tree has no room. Returns how many
// new nodes the merged tree gets.
//
// Pre         siblings of a tree have different tokens
__device__ inline std::int32_t find_merged(const tree_writer& merged, const tree_writer& drafted, node_id* node_of,
                                           warp_sums& sums) {
  const std::int32_t n = drafted.size->n_nodes, n_known = merged.size->n_nodes, left = merged.left();
  each_node(n, [&](node_id u) { node_of[u] = u == root_node ? root_node : no_node; });
  __syncthreads();
  // Goes from level to level until none of a level's drafted nodes is in the merged tree: a node can be there only if
  // its parent is there, too.
  bool any = true;
  for (std::int32_t level = 1; __syncthreads_or(any ? 1 : 0) != 0; ++level) {
    any = false;
    each_node(n, [&](node_id u) {
      if (drafted.depth[u] != level) return;
      const node_id above = node_of[drafted.parent[u]];
      if (above == no_node) return;
      node_of[u] = merged.view().find_child(above, drafted.token[u]);
      any = any || node_of[u] != no_node;
    });
  }
  std::int32_t n_new = 0;
  for (std::int32_t first = 0; first < n; first += merge_threads) {
    const node_id u = first + static_cast<node_id>(threadIdx.x);
    const bool is_new = u < n && node_of[u] == no_node;
    const running_sum found = sum_before(is_new ? 1 : 0, sums);
    if (is_new && n_new + found.before < left) node_of[u] = n_known + n_new + found.before;
    n_new += found.all;
    __syncthreads();
  }
  return n_new < left ? n_new : left;
}

// Adds the drafted nodes whose merged numbers are n_known or more, as if they were appended one after the other. Does
// not change the merged tree's size.
__device__ inline void add_merged(const tree_writer& merged, const tree_writer& drafted, const node_id* node_of,
                                  std::int32_t n_known) {
  const std::int32_t n = drafted.size->n_nodes;
  // If the merged tree was a root alone, the log-probabilities of paths are copied from the drafted tree. Otherwise
  // each level is written after the level above it, since a node's sum is its parent's sum plus its own
  // log-probability.
  const bool is_first = n_known == 1;
  bool goes_on = true;
  for (std::int32_t level = 1; __syncthreads_or(goes_on ? 1 : 0) != 0; ++level) {
    goes_on = false;
    each_node(n, [&](node_id u) {
      const node_id node = node_of[u];
      const std::int32_t depth = drafted.depth[u];
      if (node < n_known || depth < level) return;
      if (depth > level && !is_first) {
        goes_on = true;
        return;
      }
      const node_id above = node_of[drafted.parent[u]];
      const float log_prob = drafted.log_prob[u];
      merged.put(node, above, drafted.token[u], log_prob, depth,
                 is_first ? drafted.path_log_prob[u] : merged.path_log_prob[above] + log_prob);
    });
  }
  each_node(n, [&](node_id u) {
    const node_id node = node_of[u];
    if (node == no_node) return;
    std::int32_t first = node < n_known ? merged.first_draw[node] : -1;
    std::int32_t last = node < n_known ? merged.last_draw[node] : -1;
    for (const node_id child : drafted.view().draws(u)) {
      if (node_of[child] < n_known) continue;
      const std::int32_t draw = node_of[child] - 1;
      merged.drawn_node[draw] = node_of[child];
      merged.next_draw[draw] = -1;
      (last < 0 ? first : merged.next_draw[last]) = draw;
      last = draw;
    }
    merged.first_draw[node] = first;
    merged.last_draw[node] = last;
  });
}

// Copies a tree into another one, which has room for as many nodes.
__device__ inline void copy_tree(const tree_writer& to, const tree_writer& from) {
  each_node(from.size->n_nodes, [&](node_id u) {
    to.put(u, from.parent[u], from.token[u], from.log_prob[u], from.depth[u], from.path_log_prob[u]);
    to.first_draw[u] = from.first_draw[u];
    to.last_draw[u] = from.last_draw[u];
  });
  each_node(from.size->n_draws, [&](std::int32_t draw) {
    to.next_draw[draw] = from.next_draw[draw];
    to.drawn_node[draw] = from.drawn_node[draw];
  });
  if (threadIdx.x == 0) *to.size = *from.size;
}

// Merges the tree that a policy has drafted; a block works for a lane. was[u] becomes the number that merged node u had
// for the policy's drafter, or no_node. Then the text's tree becomes a root again, for the next policy; after the last
// policy it becomes the merged tree.
//
// Shapes      was [places][stride]; drafted_was likewise if the policy has built its tree anew, else nullptr
template <class RoomT>
ESPALIER_KERNEL void __launch_bounds__(merge_threads)
    merge_part(text_batch texts, merged_trees to, moved_nodes drafted_was, node_id* was, RoomT next, bool is_last) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  auto& sums = *reinterpret_cast<warp_sums*>(shared_memory());
  const tree_writer merged = to.tree(here.place);
  node_id* const node_of = to.node_of + static_cast<std::ptrdiff_t>(here.place) * to.stride;
  was += static_cast<std::ptrdiff_t>(here.place) * to.stride;
  const std::int32_t n = here.tree.size->n_nodes;
  each_node(to.stride, [&](node_id node) { was[node] = no_node; });
  const std::int32_t n_known = merged.size->n_nodes;
  const std::int32_t n_added = find_merged(merged, here.tree, node_of, sums);
  add_merged(merged, here.tree, node_of, n_known);
  each_node(n, [&](node_id u) {
    if (node_of[u] != no_node) was[node_of[u]] = drafted_was.was == nullptr ? u : drafted_was.of(here.place)[u];
  });
  if (threadIdx.x == 0) merged.size->n_nodes += n_added, merged.size->n_draws += n_added;
  __syncthreads();
  if (is_last) {
    copy_tree(here.tree, merged);
  } else if (threadIdx.x == 0) {
    here.tree.reset(merged.token[root_node], next.limit(here, merged.limit()));
  }
}

}  // namespace detail

//! espalier::cascade on the device: policy i grows over drafter i of a joint, and their trees are merged, node by node
//! as on the host.
//!
//!     make_decoder(joint(autoregressive(draft, draft_kv), prompt_lookup()), cascade(dynatree(), chain()), greedy(),
//!     kv, target);
//!
//! Policies are kept by value, and observe the merged tree and its verdict. Texts have no options of their own.
//!
//! Complexity  the launches of the policies, one after the other, and n + 1 launches for n policies: one of one thread
//!             a text, and for each policy one of a block of 256 threads a text, which goes over the drafted nodes once
//!             for each of their levels, and, for each of these nodes, over the children that its parent has in the
//!             merged tree. For each step drafter one launch more, by which it renumbers its nodes. Memory of 40 bytes
//!             for each node and text, and 4 more for each drafter. No allocation after reserve, no synchronisation
//! Law         as espalier::cascade. A drafter that has no room is asked all the same, but its policy's tree has room
//!             for no node
//! Errors      option_error for more than 1048576 nodes in all; the errors of the policies
template <class... PoliciesT>
class cascade {
  static_assert(((PoliciesT::sampling == regime::deterministic) && ...),
                "a cascade merges deterministic trees only: draws from several drafters are draws from no row, and no "
                "verifier would be lossless for them");
  using policies_type = std::tuple<PoliciesT...>;
  static constexpr std::size_t n_policies = sizeof...(PoliciesT);
  template <std::size_t Index>
  using policy_type = std::tuple_element_t<Index, policies_type>;

 public:
  static constexpr regime sampling = regime::deterministic;

  explicit cascade(PoliciesT... policies)
      : policies_(std::move(policies)...), merged_(checked(max_nodes_of(policies_))) {
    reserve_merged(1);
  }

  std::int32_t max_nodes() const { return merged_.capacity(); }

  std::tuple<PoliciesT&...> parts() {
    return std::apply([](auto&... policy) { return std::tie(policy...); }, policies_);
  }
  std::tuple<const PoliciesT&...> parts() const {
    return std::apply([](const auto&... policy) { return std::tie(policy...); }, policies_);
  }

  //! Allocates the merged trees. The policies are reserved separately, for their drafters: see reserve_trees.
  void reserve(std::int32_t max_texts) {
    merged_ = tree(merged_.capacity(), max_texts);
    reserve_merged(max_texts);
  }

  //! Sets how many tokens each drafter can hold.
  void limit_parts(std::span<const std::int32_t> capacities) {
    std::copy_n(capacities.begin(), n_policies, capacities_);
  }

  //! Index of the drafter that is asked about the nodes that are wanted now.
  std::size_t part() const { return part_; }

  //! Returns the numbers by which drafter `part` knows the merged trees' nodes.
  moved_nodes was(std::size_t part) const { return {was_[part].data(), stride()}; }

  node_list begin(const text_batch& texts, cudaStream_t stream) {
    launch("open_cascade", detail::open_cascade<detail::part_room>, {.grid = texts.lanes()}, stream, texts, merged(),
           room<0>());
    return begin_from<0>(texts, stream);
  }

  template <std::size_t Index, class AnswerT>
  requires(Index < n_policies) && detail::TakesAnswer<policy_type<Index>, AnswerT> node_list
      take(const text_batch& texts, const AnswerT& answer, cudaStream_t stream) {
    auto& policy = std::get<Index>(policies_);
    const node_list wanted = policy.take(texts, answer, stream);
    if (wanted.n > 0) return wanted;
    moved_nodes was;
    if constexpr (RebuildingPolicy<policy_type<Index>> && std::is_same_v<AnswerT, text_rows>) was = policy.was();
    return merge<Index>(texts, was, stream);
  }

  void observe(const text_batch& texts, const verdict* decisions, cudaStream_t stream) {
    std::apply([&](auto&... policy) { (policy.observe(texts, decisions, stream), ...); }, policies_);
  }

  void reset(std::int32_t place, cudaStream_t stream) {
    const auto reset_one = [&]<class PolicyT>(PolicyT& policy) {
      if constexpr (ResettingPolicy<PolicyT>) policy.reset(place, stream);
    };
    std::apply([&](auto&... policy) { (reset_one(policy), ...); }, policies_);
  }

 private:
  static std::int64_t max_nodes_of(const policies_type& policies) {
    return std::apply([](const auto&... policy) { return (std::int64_t{policy.max_nodes()} + ...); }, policies);
  }

  static std::int32_t checked(std::int64_t nodes) {
    require_option("nodes of the cascade", nodes, std::int64_t{0}, std::int64_t{1} << 20);
    return static_cast<std::int32_t>(nodes);
  }

  void reserve_merged(std::int32_t max_texts) {
    const std::size_t n = static_cast<std::size_t>(max_texts) * static_cast<std::size_t>(stride());
    node_of_ = device_array<node_id>(n);
    for (device_array<node_id>& was : was_)
      was = device_array<node_id>(n);
  }

  std::int32_t stride() const { return max_nodes() + 1; }

  detail::merged_trees merged() const {
    return {merged_.writer(), static_cast<std::ptrdiff_t>(tree::n_words(max_nodes())), node_of_.data(), stride()};
  }

  // Returns the limits on the tree of policy Index. The tree of a RebuildingPolicy needs room for all nodes that are
  // asked about while it grows.
  template <std::size_t Index>
  detail::part_room room() const {
    const auto& policy = std::get<Index>(policies_);
    std::int32_t most = policy.max_nodes();
    if constexpr (RebuildingPolicy<policy_type<Index>>) most = (std::max)(most, policy.max_asked());
    return {capacities_[Index], most};
  }

  // Begins the first policy from Index on that wants to ask about nodes, and returns these nodes. If none of them does,
  // the list is empty, and the round's trees are the merged trees.
  template <std::size_t Index>
  node_list begin_from(const text_batch& texts, cudaStream_t stream) {
    if constexpr (Index < n_policies) {
      part_ = Index;
      const node_list wanted = std::get<Index>(policies_).begin(texts, stream);
      return wanted.n > 0 ? wanted : merge<Index>(texts, {}, stream);
    } else {
      return {};
    }
  }

  // Merges the tree of policy Index, and goes on to the next policy.
  template <std::size_t Index>
  node_list merge(const text_batch& texts, moved_nodes drafted_was, cudaStream_t stream) {
    constexpr bool is_last = Index + 1 == n_policies;
    detail::part_room next;
    if constexpr (!is_last) next = room<Index + 1>();
    launch("merge_part", detail::merge_part<detail::part_room>,
           {.grid = texts.lanes(), .threads = detail::merge_threads, .shared_bytes = sizeof(warp_sums)}, stream, texts,
           merged(), drafted_was, was_[Index].data(), next, is_last);
    return begin_from<Index + 1>(texts, stream);
  }

  policies_type policies_;
  tree merged_;                            // [texts]
  device_array<node_id> node_of_;          // [texts][max_nodes + 1]
  device_array<node_id> was_[n_policies];  // [texts][max_nodes + 1]
  std::int32_t capacities_[n_policies] = {};
  std::size_t part_ = 0;
};

}  // namespace espalier::cuda
