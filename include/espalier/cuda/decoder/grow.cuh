// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

namespace detail {

// Over the drafters of a joint, whichever the policy asks.
template <class PolicyT, class DrafterT, class HearT, std::size_t... Index>
void grow_parts(PolicyT& policy, const text_batch& texts, DrafterT& drafter, cudaStream_t stream, const HearT& hear,
                std::index_sequence<Index...>) {
  static_assert(((!StepDrafter<part_of<DrafterT, Index>> || RenumberingDrafter<part_of<DrafterT, Index>>)&&...),
                "a cascade builds the trees anew: each of its step drafters must have renumber(texts, moved, stream) "
                "to follow");
  const std::int32_t capacities[] = {drafter.template get<Index>().capacity()...};
  policy.limit_parts(capacities);
  node_list wanted = policy.begin(texts, stream);
  const auto step = [&]<std::size_t Part>() {
    auto& asked = drafter.template get<Part>();
    if constexpr (!SequenceDrafter<part_of<DrafterT, Part>>) hear(wanted.n);
    const auto answer = ask(texts, asked, wanted, stream);
    wanted = policy.take(texts, joint_answer<Part, std::remove_const_t<decltype(answer)>>{answer}, stream);
    return true;
  };
  while (wanted.n > 0) {
    const std::size_t part = policy.part();
    (void)((Index == part && step.template operator()<Index>()) || ...);
  }
  const auto renumber = [&]<class PartT>(PartT& part, std::size_t index) {
    if constexpr (RenumberingDrafter<PartT>) part.renumber(texts, policy.was(index), stream);
  };
  (renumber(drafter.template get<Index>(), Index), ...);
}

}  // namespace detail

//! espalier::grow on the device: enqueues the steps that make the texts' trees, which hold the roots, this round's.
//!
//! `hear` is told how many nodes of each text a pass of a draft model is over.
//!
//! Complexity  the policy's steps, each with one pass of the drafter. No synchronisation, no allocation
template <class PolicyT, class DrafterT, class HearT>
requires TreePolicy<PolicyT, DrafterT>
void grow(PolicyT& policy, const text_batch& texts, DrafterT& drafter, cudaStream_t stream, const HearT& hear) {
  if constexpr (JointDrafter<DrafterT>) {
    detail::grow_parts(policy, texts, drafter, stream, hear, std::make_index_sequence<DrafterT::size()>());
  } else {
    [[maybe_unused]] node_list wanted = policy.begin(texts, stream);
    if constexpr (AskableDrafter<DrafterT>) {
      while (wanted.n > 0) {
        if constexpr (!SequenceDrafter<DrafterT>) hear(wanted.n);
        wanted = policy.take(texts, ask(texts, drafter, wanted, stream), stream);
      }
      if constexpr (detail::Rebuilds<PolicyT, DrafterT>) drafter.renumber(texts, policy.was(), stream);
    }
  }
}

template <class PolicyT, class DrafterT>
requires TreePolicy<PolicyT, DrafterT>
void grow(PolicyT& policy, const text_batch& texts, DrafterT& drafter, cudaStream_t stream) {
  grow(policy, texts, drafter, stream, [](std::int32_t) {});
}

}  // namespace espalier::cuda
