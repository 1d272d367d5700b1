// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

//! espalier::grow on the device: enqueues the steps that make the texts' trees, which hold the roots, this round's.
//!
//! Complexity  the policy's steps, each with one pass of the drafter. No synchronisation, no allocation
template <class PolicyT, class DrafterT>
requires TreePolicy<PolicyT, DrafterT>
void grow(PolicyT& policy, const text_batch& texts, DrafterT& drafter, cudaStream_t stream) {
  node_list wanted = policy.begin(texts, stream);
  if constexpr (AskableDrafter<DrafterT>) {
    while (wanted.n > 0)
      wanted = policy.take(texts, ask(texts, drafter, wanted, stream), stream);
  }
}

}  // namespace espalier::cuda
