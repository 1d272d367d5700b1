// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <concepts>

#include "espalier/concepts/regime.hpp"
#include "espalier/core/tree_view.hpp"
#include "espalier/core/verdict.hpp"

namespace espalier {

namespace detail {

template <class VerifierT>
concept NamesLossless = requires {
  { VerifierT::lossless } -> std::convertible_to<regime>;
};

template <class VerifierT, class DraftRowsT, class TargetRowsT, class ChanceT>
concept Verifies = requires(VerifierT& verifier, tree_view tree, DraftRowsT draft, TargetRowsT& target,
                            ChanceT& chance) {
  { verifier.verify(tree, draft, target, chance) } -> std::same_as<verdict>;
};

}  // namespace detail

//! Accepts a path of the tree and adds one token of the target's own.
//!
//! Minimal definition
//!   static constexpr regime lossless             the regimes for which it is lossless
//!   verify(tree, draft, target, chance) -> verdict
//! Optional
//!   static constexpr bool argmax_only            true: it never samples, and the target's temperature must be 0
//!   reserve(max_nodes, vocab)                    called before any round: no round allocates after it
//!   memory, static verify(.., memory*)           what it keeps of each node on the path: the device gives it room for the longest
//! where draft.row(u) is the distribution that the children of u were drawn from, and target offers, computed when
//! first asked for, target.row(u) (the target's distribution after u) and target.argmax(u).
//! A verifier reads each row that it uses once more to check it, unless the rows' type says `are_distributions`.
//! Laws
//!   The committed tokens, continued by the target, are distributed as the target alone would write.
//! Models
//!   greedy and target_only, which ask the target alone; naive, block (a single path); naive_tree, spectr, specinfer,
//!   khisti, traversal (independent draws); residual_walk, traversal_without_replacement
template <class VerifierT, class DraftRowsT, class TargetRowsT, class ChanceT>
concept Verifier = detail::NamesLossless<VerifierT> && detail::Verifies<VerifierT, DraftRowsT, TargetRowsT, ChanceT>;

}  // namespace espalier
