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
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/moved_nodes.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/core/tree.cuh"
#include "espalier/cuda/tree_policy/cascade/merge_part.cuh"

namespace espalier::cuda {

//! espalier::cascade on the device: policy i grows over drafter i of a joint, and what they draft is merged, node by
//! node as on the host.
//!
//!     make_decoder(joint(autoregressive(draft, draft_kv), prompt_lookup()), cascade(dynatree(), chain()), greedy(),
//!     kv, target);
//!
//! Policies are kept by value, and observe the merged tree and its verdict. Texts have no options of their own.
//!
//! Complexity  that of the policies, one after the other, and n + 1 launches for n policies: one of one thread, and one
//!             of one block of 256 for each, which goes over the drafted nodes once for each of their levels, and over
//!             the children of those that are there. For each step drafter one more, of its renumber. Memory of 40
//!             bytes for each node and text, and 4 for each drafter besides. No allocation after reserve, no
//!             synchronisation
//! Law         that of espalier::cascade. A drafter that has no room is asked all the same: its policy's tree has room
//!             for nothing
//! Errors      option_error for more than 1048576 nodes in all; those of the policies
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

  static constexpr std::size_t size() { return n_policies; }

  template <std::size_t Index>
  policy_type<Index>& policy() {
    return std::get<Index>(policies_);
  }
  template <std::size_t Index>
  const policy_type<Index>& policy() const {
    return std::get<Index>(policies_);
  }

  //! Of what is its own: the policies are reserved for their drafters, see reserve_trees.
  void reserve(std::int32_t max_texts) {
    merged_ = tree(merged_.capacity(), max_texts);
    reserve_merged(max_texts);
  }

  //! Tokens that each drafter can hold.
  void limit_parts(std::span<const std::int32_t> capacities) {
    std::copy_n(capacities.begin(), n_policies, capacities_);
  }

  //! The drafter that is asked about what is wanted.
  std::size_t part() const { return part_; }

  //! Of the trees that this drafter was asked about.
  moved_nodes was(std::size_t part) const { return {was_[part].data(), stride()}; }

  node_list begin(const text_batch& texts, cudaStream_t stream) {
    launch("open_cascade", detail::open_cascade<detail::part_room>, {.grid = texts.lanes()}, stream, texts, merged(),
           room<0>());
    return begin_from<0>(texts, stream);
  }

  template <std::size_t Index, class AnswerT>
  requires(Index < n_policies) && detail::TakesAnswer<policy_type<Index>, AnswerT> node_list
      take(const text_batch& texts, const joint_answer<Index, AnswerT>& answer, cudaStream_t stream) {
    auto& policy = std::get<Index>(policies_);
    const node_list wanted = policy.take(texts, answer.of, stream);
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

  // Of the tree of a policy, which while it grows holds what that one asks for.
  template <std::size_t Index>
  detail::part_room room() const {
    const auto& policy = std::get<Index>(policies_);
    std::int32_t most = policy.max_nodes();
    if constexpr (RebuildingPolicy<policy_type<Index>>) most = (std::max)(most, policy.max_asked());
    return {capacities_[Index], most};
  }

  // Begins the first policy from this one on that wants something; once there is none, the trees are what all have
  // drafted.
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

  // Merges what this policy has drafted, and goes on to the next.
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
