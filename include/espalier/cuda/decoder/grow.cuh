// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/tree_policy.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text.cuh"

namespace espalier::cuda {

//! espalier::grow on the device: enqueues the steps that make a tree, which holds the root, this round's.
//!
//! Complexity  the policy's steps, each with one pass of the drafter. No synchronisation, no allocation
template <class PolicyT, class DrafterT>
requires TreePolicy<PolicyT, DrafterT>
void grow(PolicyT& policy, tree_writer tree, DrafterT& drafter, chance_source chance, cudaStream_t stream) {
  node_list wanted = policy.begin(tree, stream);
  if constexpr (AskableDrafter<DrafterT>) {
    while (wanted.n > 0)
      wanted = policy.take(tree, ask(tree, drafter, wanted, stream), chance, stream);
  }
}

}  // namespace espalier::cuda
