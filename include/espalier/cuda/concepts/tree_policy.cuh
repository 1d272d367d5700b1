// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <concepts>

#include "espalier/concepts/tree_policy.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/core/verdict.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text.cuh"

namespace espalier::cuda {

namespace detail {

// A policy over a drafter that cannot be asked may take anything: nothing is asked.
template <class DrafterT>
auto answer_of(DrafterT& drafter) {
  if constexpr (AskableDrafter<DrafterT>) {
    return ask(tree_writer(), drafter, node_list(), cudaStream_t());
  } else {
    return espalier::detail::no_answer();
  }
}

}  // namespace detail

//! espalier::TreePolicy on the device: the same steps, each a fixed series of launches, whatever tree they grow.
//!
//! Minimal definition
//!   static constexpr regime sampling, max_nodes() -> int   as espalier::TreePolicy's
//!   begin(tree, stream) -> node_list   a round begins, tree holds the root, and its limit is set; the root, or nothing
//!   take(tree, answer, chance, stream) -> node_list   enqueues what appends to the tree, and gives the nodes to ask
//!                                         about next; a list of 0 once the tree is this round's. The answer is
//!                                         node_rows<float> or block_rows
//!   observe(tree, decision, stream)       what was committed; decision [1] is on the device, its token -1 where
//!                                         nothing was
//! Laws
//!   Those of espalier::TreePolicy; the tree is the one that the host's policy of the same name grows from the same
//!   rows and numbers. How many steps there are and how long their lists is a matter of the options alone: who is not
//!   asked is no_node. The root is asked about in a full tree, too. Nothing synchronises or allocates
//! Models
//!   plain, chain, sampled_chain, iid_paths, delayed, best_first, dynatree, dyspec_greedy, dyspec_threshold
template <class PolicyT, class DrafterT>
concept TreePolicy = espalier::detail::NamesRegime<PolicyT> && espalier::detail::HasBudget<PolicyT> &&
    requires(PolicyT& policy, tree_writer tree, DrafterT& drafter, chance_source chance, const verdict* decision,
             cudaStream_t stream) {
  { policy.begin(tree, stream) } -> std::same_as<node_list>;
  { policy.take(tree, detail::answer_of(drafter), chance, stream) } -> std::same_as<node_list>;
  policy.observe(tree, decision, stream);
};

//! espalier::ResettingPolicy on the device: reset(stream) forgets what was learnt from the last text.
template <class PolicyT>
concept ResettingPolicy = requires(PolicyT& policy, cudaStream_t stream) {
  policy.reset(stream);
};

}  // namespace espalier::cuda
