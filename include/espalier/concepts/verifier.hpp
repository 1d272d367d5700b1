// SPDX-License-Identifier: BSL-1.0
// Tested by tests/concepts/minimal.cpp
#pragma once

#include <concepts>
#include <cstdint>
#include <type_traits>

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

template <class VerifierT>
concept SaysArgmaxOnly = requires {
  typename std::bool_constant<VerifierT::argmax_only>;
};

template <class VerifierT>
concept SaysTargetAlone = requires {
  typename std::bool_constant<VerifierT::target_alone>;
};

template <class VerifierT>
concept HasReserve = requires(VerifierT& verifier, std::int32_t n) {
  verifier.reserve(n, n);
};

// True if the verifier says that it reads no row of the draft: then these rows need not be kept for it.
template <class VerifierT>
constexpr bool reads_target_alone() {
  if constexpr (SaysTargetAlone<VerifierT>) return VerifierT::target_alone;
  return false;
}

}  // namespace detail

//! A verifier that never samples: the target's temperature must be 0.
//!
//! Minimal definition, besides Verifier
//!   static constexpr bool argmax_only = true
//! Models
//!   greedy
template <class VerifierT>
concept ArgmaxVerifier = detail::SaysArgmaxOnly<VerifierT> && VerifierT::argmax_only;

//! Calls reserve() of a verifier that has it, for trees of up to max_nodes drafted tokens and rows of `vocab` tokens.
template <class VerifierT>
void reserve_verifier(VerifierT& verifier, std::int32_t max_nodes, std::int32_t vocab) {
  if constexpr (detail::HasReserve<VerifierT>) verifier.reserve(max_nodes, vocab);
}

//! Accepts a path of the tree and adds one token of the target's own.
//!
//! Minimal definition
//!   static constexpr regime lossless             the regimes for which it is lossless
//!   verify(tree, draft, target, chance) -> verdict   the last node of the accepted path, and the token after it
//! Optional
//!   static constexpr bool argmax_only = true     see ArgmaxVerifier
//!   static constexpr bool target_alone = true    it reads no row of the draft: these rows need not be kept for it
//!   reserve(max_nodes, vocab)                    takes memory, before any round: no round allocates after it
//!   memory, static verify(.., memory*)           the type of the state that it keeps for each node on the path: the
//!                                                device gives verify() an array of these for the longest path
//!   stage_memory, static verify(.., options, stage_memory)
//!                                                the type of the memory over the vocabulary that it needs for one
//!                                                node: the device gives verify() one for each text (khisti)
//! draft.row(u) is the distribution that the children of u were drawn from. target.row(u), the target's distribution
//! after u, and target.argmax(u) are computed when they are first asked for. A verifier checks each row that it uses,
//! which reads the row once more, unless the rows' type says `are_distributions`.
//! Laws
//!   The committed tokens, continued by the target, are distributed as text that the target writes alone.
//! Models
//!   greedy and target_only, which ask the target alone; naive, block_verification (a single path); naive_tree, spectr,
//!   specinfer, khisti, traversal, multi_path_block (independent draws); residual_walk, traversal_without_replacement
template <class VerifierT, class DraftRowsT, class TargetRowsT, class ChanceT>
concept Verifier = detail::NamesLossless<VerifierT> && detail::Verifies<VerifierT, DraftRowsT, TargetRowsT, ChanceT>;

}  // namespace espalier
