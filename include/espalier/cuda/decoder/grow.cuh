// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! espalier::grow on the device: enqueues the steps that make the texts' trees, which hold the roots, this round's.
//!
//! `hear` is told how many nodes of each text a pass of a draft model is over.
//!
//! Complexity  the policy's steps, each with one pass of the drafter. No synchronisation, no allocation
template <class PolicyT, class DrafterT, class HearT>
requires TreePolicy<PolicyT, DrafterT>
void grow(PolicyT& policy, const text_batch& texts, DrafterT& drafter, cudaStream_t stream, const HearT& hear) {
  node_list wanted = policy.begin(texts, stream);
  if constexpr (AskableDrafter<DrafterT>) {
    while (wanted.n > 0) {
      if constexpr (!SequenceDrafter<DrafterT>) hear(wanted.n);
      wanted = policy.take(texts, ask(texts, drafter, wanted, stream), stream);
    }
    if constexpr (detail::Rebuilds<PolicyT, DrafterT>) drafter.renumber(texts, policy.was(), stream);
  }
}

template <class PolicyT, class DrafterT>
requires TreePolicy<PolicyT, DrafterT>
void grow(PolicyT& policy, const text_batch& texts, DrafterT& drafter, cudaStream_t stream) {
  grow(policy, texts, drafter, stream, [](std::int32_t) {});
}

}  // namespace espalier::cuda
