// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/chain.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/model_states.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! espalier::grow on the device: enqueues the steps in which the policy grows the texts' trees of this round with the
//! answers of the drafter. At first each tree has its root alone.
//!
//! hear(n) is called before each pass of a draft model: the pass has n nodes of each text.
//!
//! Complexity  the policy's steps, each with one pass of a part of the drafter. No synchronisation, no allocation
template <class PolicyT, class DrafterT, class HearT>
requires TreePolicy<PolicyT, DrafterT>
void grow(PolicyT& policy, const text_batch& texts, DrafterT& drafter, cudaStream_t stream, const HearT& hear) {
  constexpr bool asks_parts = detail::AsksParts<PolicyT>;
  std::size_t part = 0;
  if constexpr (asks_parts) {
    std::int32_t capacities[n_parts<DrafterT>];
    for_each_part(drafter, [&](auto& one, auto index) { capacities[index] = one.capacity(); });
    policy.limit_parts(capacities);
  }
  node_list wanted = policy.begin(texts, stream);
  bool is_first = true;
  const auto step = [&]<class PartT, std::size_t Index>(PartT& asked, part_index<Index>) {
    if constexpr (!AskableDrafter<PartT>) {
      wanted = {};
    } else {
      if constexpr (!SequenceDrafter<PartT>) hear(wanted.n);
      const auto answer = ask(texts, asked, wanted, stream);
      if (std::exchange(is_first, false)) detail::show_draft_states(policy, texts, asked, stream);
      if constexpr (asks_parts)
        wanted = policy.template take<Index>(texts, answer, stream);
      else
        wanted = policy.take(texts, answer, stream);
    }
  };
  while (wanted.n > 0) {
    if constexpr (asks_parts) part = policy.part();
    espalier::detail::with_part(drafter, part, step);
  }
  // OfT makes the type of the policy a parameter of the lambda: otherwise nvcc compiles the calls of was() for policies
  // that have no was(), too.
  for_each_part(
      drafter, [&]<class PartT, class OfT = PolicyT>(PartT & one, auto index) {
        OfT& of = policy;
        static_assert(
            !asks_parts || !StepDrafter<PartT> || RenumberingDrafter<PartT>,
            "a cascade builds the trees anew: each of its step drafters must have renumber(texts, moved, stream) "
            "to follow");
        if constexpr (asks_parts && RenumberingDrafter<PartT>)
          one.renumber(texts, of.was(index), stream);
        else if constexpr (detail::Rebuilds<PolicyT, PartT>)
          one.renumber(texts, of.was(), stream);
      });
}

template <class PolicyT, class DrafterT>
requires TreePolicy<PolicyT, DrafterT>
void grow(PolicyT& policy, const text_batch& texts, DrafterT& drafter, cudaStream_t stream) {
  grow(policy, texts, drafter, stream, [](std::int32_t) {});
}

}  // namespace espalier::cuda
