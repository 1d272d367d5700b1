// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/chain.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/concepts/drafter.hpp"
#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! espalier::RebuildingPolicy on the device.
//!
//! Minimal definition, besides TreePolicy
//!   max_asked() -> int         drafted tokens that a tree may hold while it grows from a StepDrafter
//!   reserve_asked(max_texts)   as reserve, for trees that grow from a StepDrafter: called instead of it, and also for
//!                              one text
//!   was() -> moved_nodes       for each node, the number that it had when a StepDrafter was asked about it; called
//!                              after take() has returned an empty list; at addresses that do not change
//! Models
//!   eagle2, best_first
template <class PolicyT>
concept RebuildingPolicy = requires(PolicyT& policy, const PolicyT& fixed, std::int32_t n) {
  { fixed.max_asked() } -> std::convertible_to<std::int32_t>;
  policy.reserve_asked(n);
  { fixed.was() } -> std::same_as<moved_nodes>;
};

namespace detail {

using espalier::detail::HasParts;

// A policy of several parts, which has all members that only such a policy needs: see TreePolicy.
template <class PolicyT>
concept AsksParts = HasParts<PolicyT> &&
    requires(PolicyT& policy, const PolicyT& fixed, std::span<const std::int32_t> capacities) {
  policy.limit_parts(capacities);
  { fixed.part() } -> std::convertible_to<std::size_t>;
  { fixed.was(std::size_t{}) } -> std::same_as<moved_nodes>;
};

template <class PolicyT, class DrafterT>
concept Rebuilds = RebuildingPolicy<PolicyT> && StepDrafter<DrafterT>;

// Returns the answer of a drafter; no_answer if the drafter is never asked, such as no_drafter. Only the type is used.
template <class DrafterT>
auto answer_of(DrafterT& drafter) {
  if constexpr (AskableDrafter<DrafterT>) {
    return ask(text_batch(), drafter, node_list(), cudaStream_t());
  } else {
    return espalier::detail::no_answer();
  }
}

template <class PolicyT, class AnswerT>
concept TakesAnswer = requires(PolicyT& policy, const text_batch& texts, AnswerT answer, cudaStream_t stream) {
  { policy.take(texts, answer, stream) } -> std::same_as<node_list>;
};

template <class PolicyT, std::size_t Index, class AnswerT>
concept TakesAnswerOfPart = requires(PolicyT& policy, const text_batch& texts, AnswerT answer, cudaStream_t stream) {
  { policy.template take<Index>(texts, answer, stream) } -> std::same_as<node_list>;
};

// True if the policy takes the answers of the drafter's part with this number.
template <class PolicyT, class PartT, std::size_t Index>
constexpr bool takes_part() {
  using answer = decltype(answer_of(std::declval<PartT&>()));
  if constexpr (AsksParts<PolicyT>) {
    return AskableDrafter<PartT> && TakesAnswerOfPart<PolicyT, Index, answer>;
  } else {
    constexpr bool follows = !Rebuilds<PolicyT, PartT> || RenumberingDrafter<PartT>;
    return !HasParts<PolicyT> && follows && TakesAnswer<PolicyT, answer>;
  }
}

template <class PolicyT, class DrafterT>
constexpr bool takes_answers() {
  if constexpr (n_parts<PolicyT> != n_parts<DrafterT>) {
    return false;
  } else {
    return []<std::size_t... Index>(std::index_sequence<Index...>) {
      return (takes_part<PolicyT, part_type<DrafterT, Index>, Index>() && ...);
    }
    (std::make_index_sequence<n_parts<DrafterT>>());
  }
}

template <class PolicyT, class DrafterT>
concept Takes = takes_answers<PolicyT, DrafterT>();

// Depth of the deepest node that this policy can draft: max_nodes(), or policy.max_depth() if it has that and it is
// less.
template <class PolicyT>
std::int32_t max_depth(const PolicyT& policy) {
  if constexpr (requires { policy.max_depth(); }) {
    return (std::min)(policy.max_depth(), policy.max_nodes());
  } else {
    return policy.max_nodes();
  }
}

}  // namespace detail

//! espalier::TreePolicy on the device: it takes the same steps for all texts of a round at once. Each step is a fixed
//! series of launches, whatever trees grow.
//!
//! Minimal definition
//!   static constexpr regime sampling, max_nodes() -> int   as espalier::TreePolicy's
//!   reserve(max_texts)                 takes memory for rounds of so many texts; called first, if there are more than
//!                                      one
//!   begin(texts, stream) -> node_list  begins a round. Each tree already holds its root, and knows how many nodes it
//!                                      may have. Returns the nodes to ask about: the root, or none
//!   take(texts, answer, stream) -> node_list   enqueues the launches that append nodes to the trees; returns the nodes
//!                                      to ask about next, none once the trees are complete. The answer is text_rows,
//!                                      block_rows or text_runs
//!   observe(texts, decisions, stream)  is told which verdicts were committed: decisions [places], on the device; a
//!                                      token of -1 says that nothing was committed
//! Optional
//!   max_depth() -> int                 the longest path of its trees; max_nodes() without it. In a cascade it bounds
//!                                      the accepted tokens about which the drafters of the other policies were not
//!                                      asked
//!   parts() -> tuple of policy&        as espalier::TreePolicy's: each of these policies takes memory with reserve(),
//!                                      and keeps what it has learnt. A policy with parts() also has (see cascade):
//!     limit_parts(capacities)          takes, before begin(), how many tokens each part of the drafter can hold
//!     part() -> std::size_t            number of the drafter's part that is to be asked about the nodes which begin()
//!                                      or take() has returned last
//!     take<Index>(texts, answer, stream)   instead of take(): the answer is that of part Index
//!     was(part) -> moved_nodes         as RebuildingPolicy's
//! Laws
//!   The laws of espalier::TreePolicy; the tree is the one that the host's policy of the same name grows from the same
//!   rows and random numbers. The number of steps and the length of their lists depend on the options alone: where
//!   there is no node to ask about, the list has no_node. The root is asked about even in a full tree. No member but
//!   reserve and reserve_asked synchronises or allocates
//! Models
//!   plain, chain, adaptive_chain, sampled_chain, iid_paths, specinfer_static, delayed, neural_delayed, best_first,
//!   eagle2, fixed, dynatree, dyspec_greedy, dyspec_threshold, sequoia, cascade
template <class PolicyT, class DrafterT>
concept TreePolicy = espalier::detail::NamesRegime<PolicyT> && espalier::detail::HasBudget<PolicyT> &&
    detail::Takes<PolicyT, DrafterT> &&
    requires(PolicyT& policy, const text_batch& texts, const verdict* decisions, std::int32_t n, cudaStream_t stream) {
  policy.reserve(n);
  { policy.begin(texts, stream) } -> std::same_as<node_list>;
  policy.observe(texts, decisions, stream);
};

//! The most drafted tokens that a tree of the policy ever holds: while it grows from this drafter, or once it is
//! complete.
template <class DrafterT, class PolicyT>
std::int32_t most_asked(const PolicyT& policy) {
  std::int32_t most = policy.max_nodes();
  for_each_part(policy, [&]<class OneT>(const OneT& one, auto index) {
    if constexpr (detail::Rebuilds<OneT, part_type<DrafterT, index>>) most = (std::max)(most, one.max_asked());
  });
  return most;
}

//! Makes the policy take the memory that it needs to grow trees of so many texts from this drafter.
template <class DrafterT, class PolicyT>
void reserve_trees(PolicyT& policy, std::int32_t max_texts) {
  for_each_part(policy, [&]<class OneT>(OneT& one, auto index) {
    if constexpr (detail::Rebuilds<OneT, part_type<DrafterT, index>>) {
      one.reserve_asked(max_texts);
    } else if (max_texts > 1) {
      one.reserve(max_texts);
    }
  });
  if constexpr (detail::AsksParts<PolicyT>) {
    if (max_texts > 1) policy.reserve(max_texts);
  }
}

//! Lets a drafter make room for the nodes that the policy may ask it about in rounds of max_texts texts. Its parts that
//! are DepthLimitedDrafters are told first how deep the trees may be and, in a joint, those that are CatchingUpDrafters
//! how many tokens another part may draft on one path.
template <class PolicyT, class DrafterT>
void reserve_draft(DrafterT& drafter, const PolicyT& policy, std::int32_t max_texts, fault* found) {
  std::vector<std::int32_t> depths;
  for_each_part(policy, [&](const auto& one, auto) { depths.push_back(detail::max_depth(one)); });
  for_each_part(drafter, [&]<class PartT>(PartT& one, [[maybe_unused]] auto part) {
    if constexpr (DepthLimitedDrafter<PartT>) one.limit_depth(*std::max_element(depths.begin(), depths.end()));
    if constexpr (n_parts<DrafterT> != 1 && CatchingUpDrafter<PartT>) {
      std::int32_t most = 0;
      for (std::size_t other = 0; other < depths.size(); ++other)
        most = other == part ? most : (std::max)(most, depths[other]);
      one.catch_up(most);
    }
  });
  drafter.reserve(most_asked<DrafterT>(policy), max_texts, found);
}

//! espalier::ResettingPolicy on the device: reset(place, stream) drops what was learnt from the last text in this
//! place.
template <class PolicyT>
concept ResettingPolicy = requires(PolicyT& policy, std::int32_t place, cudaStream_t stream) {
  policy.reset(place, stream);
};

//! espalier::SavedPolicy on the device: the values that the policy has learnt from a text, and the text's own options,
//! can be copied to another place.
//!
//! Minimal definition
//!   learnt_bytes() -> size_t   bytes of these values for one text, a multiple of 4
//!   learnt() -> byte*          [places][learnt_bytes()] on the device: values that hold no addresses
//! Models
//!   adaptive_chain, fixed, dynatree, dyspec_threshold
template <class PolicyT>
concept LearningPolicy = requires(const PolicyT& policy) {
  { policy.learnt_bytes() } -> std::convertible_to<std::size_t>;
  { policy.learnt() } -> std::same_as<std::byte*>;
};

//! A LearningPolicy whose texts may have options of their own: learnt_with(options) gives the values that a text with
//! these options, an options_type, begins with.
//!
//! Errors      option_error for options with larger trees than the policy's own options have, since launches are made
//!             for the policy's own
//! Models
//!   adaptive_chain, fixed, dynatree, dyspec_threshold
template <class PolicyT>
concept TextwisePolicy = LearningPolicy<PolicyT> &&
    requires(const PolicyT& policy, const typename PolicyT::options_type& options) {
  { policy.learnt_with(options) } -> std::same_as<std::vector<std::byte>>;
};

}  // namespace espalier::cuda
