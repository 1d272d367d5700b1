// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>
#include <cstdint>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

namespace detail {

template <class PolicyT>
concept NamesRegime = requires {
  { PolicyT::sampling } -> std::convertible_to<regime>;
};

template <class PolicyT>
concept HasBudget = requires(const PolicyT& policy) {
  { policy.max_nodes() } -> std::convertible_to<std::int32_t>;
};

template <class PolicyT, class DrafterT, class ChanceT>
concept Grows = requires(PolicyT& policy, tree<>& tree, DrafterT& drafter, ChanceT& chance) {
  policy.grow(tree, drafter, chance);
};

template <class PolicyT>
concept Observes = requires(PolicyT& policy, tree_view tree, verdict v) {
  policy.observe(tree, v);
};

}  // namespace detail

//! Decides which nodes to ask about and which to keep.
//!
//! Minimal definition
//!   static constexpr regime sampling      how children come about
//!   max_nodes() -> int                    drafted tokens a round at most, the root not counted
//!   grow(tree, drafter, chance)           tree holds the root; on return it is this round's tree
//!   observe(tree, verdict)                the round's outcome, to learn from
//! Optional
//!   open(round_start)                     a round begins: where it stands; before grow()
//!   reads_states() -> bool                with the next member: whether it wants it, and the drafter to keep its states
//!                                         (StateDrafter)
//!   read(logits, hidden)                  the target's logits [vocab] and last hidden state at the node that was accepted, before
//!                                         observe(); hidden is empty where the backend keeps none (HiddenBackend)
//!   reset()                               a new text begins: what was learnt from the last one is dropped
//!   max_asked() -> int                    drafted tokens that the tree may hold while it grows, if more than max_nodes(): what
//!                                         is kept of it is then built anew, and the drafter told by renumber()
//! Laws
//!   parent(u) < u; at most min(max_nodes(), tree.limit()) draws, and at most tree.limit() while it grows.
//!   Every row that the regime promises was asked of the drafter, and is the row that was drawn from.
//!   Whether a sampled token is kept never depends on which token it is.
//! Models
//!   plain; deterministic: chain, adaptive_chain, fixed, dynatree, best_first, eagle2, cascade, cost_aware; independent
//!   draws: iid_paths, specinfer_static, delayed, neural_delayed, sampled_chain; without replacement: dyspec_greedy,
//!   dyspec_threshold, sequoia, cost_aware_draws
template <class PolicyT, class DrafterT, class ChanceT>
concept TreePolicy = detail::NamesRegime<PolicyT> && detail::HasBudget<PolicyT> &&
    detail::Grows<PolicyT, DrafterT, ChanceT> && detail::Observes<PolicyT>;

//! Drafted tokens that a policy's tree may hold at any time.
template <class PolicyT>
std::int32_t most_asked(const PolicyT& policy) {
  if constexpr (requires { policy.max_asked(); }) return policy.max_asked();
  return policy.max_nodes();
}

}  // namespace espalier
