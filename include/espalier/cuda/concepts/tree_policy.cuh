// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>

#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/text.cuh"

namespace espalier::cuda {

//! espalier::TreePolicy on the device: a fixed series of launches, whatever tree they grow.
//!
//! Minimal definition
//!   static constexpr regime sampling, max_nodes() -> int   as espalier::TreePolicy's
//!   grow(tree, drafter, chance, stream)   tree holds the root, and its limit is set; what this enqueues makes it the round's tree
//!   observe(tree, decision, stream)       what was committed; decision [1] is on the device, its token -1 where nothing was
//! Laws
//!   Those of espalier::TreePolicy; the tree is the one that the host's policy of the same name grows from the same rows and numbers.
//!   Nothing synchronises or allocates
//! Models
//!   plain, chain, sampled_chain, iid_paths, delayed, best_first, dynatree, dyspec_greedy, dyspec_threshold
template <class PolicyT, class DrafterT>
concept TreePolicy = espalier::detail::NamesRegime<PolicyT> && espalier::detail::HasBudget<PolicyT> &&
    requires(PolicyT& policy, tree_writer tree, DrafterT& drafter, chance_source chance, const verdict* decision,
             cudaStream_t stream) {
  policy.grow(tree, drafter, chance, stream);
  policy.observe(tree, decision, stream);
};

}  // namespace espalier::cuda
