// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/block_diffusion.cu
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/drafter.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"

namespace espalier::cuda {

//! espalier::Drafter on the device, for all texts of a round at once.
//!
//! Minimal definition
//!   reserve(max_nodes, max_texts, found)   takes memory for rounds that ask about at most max_nodes nodes of each of
//!                                          max_texts trees. A row of logits from which no token can be drawn is
//!                                          reported in found [places]. Called by the one decoder that the drafter
//!                                          serves
//!   begin(place, text, context, n_known, stream)   begins to follow a new text, or the same text again: `text` on the
//!                                                  device, `context` on the host. The drafter already has the rows of
//!                                                  the first n_known tokens of the text. Not called while a graph is
//!                                                  captured
//!   ensure(place, n, stream)          makes room, before a round, for n tokens of the text, drafted ones included. Not
//!                                     called while a graph is captured
//!   commit(texts, path, stream)       ends a round: the paths and one token each will join the texts
//!   capacity() -> int                 as espalier::Drafter's
//! Optional
//!   parts() -> tuple of drafter&      as espalier::Drafter's, each part an AskableDrafter. A text may accept tokens
//!                                     that a part was not asked about, so a part that keeps rows of each text must be
//!                                     a CatchingUpDrafter or a DepthLimitedDrafter
//!   static constexpr bool falls_behind   whether begin() must be called again, with n_known, before a round that asks
//!                                     the drafter and follows one that did not. Without it that is so for a
//!                                     StepDrafter alone
//! Laws
//!   The laws of espalier::Drafter. No member but reserve and begin synchronises
//! Models
//!   the models of the refinements below; joint, which has several parts; no_drafter
template <class DrafterT>
concept Drafter = requires(DrafterT& drafter, const DrafterT& fixed, std::int32_t n, text_view text, fault* found,
                           std::span<const token_id> context, const text_batch& texts, path_view path,
                           cudaStream_t stream) {
  drafter.reserve(n, n, found);
  drafter.begin(n, text, context, n, stream);
  drafter.ensure(n, n, stream);
  drafter.commit(texts, path, stream);
  { fixed.capacity() } -> std::convertible_to<std::int32_t>;
};

//! espalier::StepDrafter on the device.
//!
//! Minimal definition, besides Drafter
//!   vocab_size() -> int
//!   propose(texts, nodes, stream)  makes the rows of these nodes; the root alone comes first and opens the round. An
//!                                  entry that is no_node is skipped
//!   rows() -> text_rows            all rows of this round: probabilities, at addresses that do not change
//! Models
//!   autoregressive; feature_steps; factorised over a BlockDrafter
template <class DrafterT>
concept StepDrafter = Drafter<DrafterT> &&
    requires(DrafterT& drafter, const text_batch& texts, node_list nodes, cudaStream_t stream) {
  { drafter.vocab_size() } -> std::convertible_to<std::int32_t>;
  drafter.propose(texts, nodes, stream);
  { drafter.rows() } -> std::convertible_to<text_rows>;
};

//! espalier::BlockDrafter on the device.
//!
//! Minimal definition, besides Drafter
//!   vocab_size(), block_length() -> int
//!   propose_block(texts, stream) -> vocab_rows<float, __half or __nv_bfloat16>   [lanes][block_length] logits; the
//!                                  same address for the same number of lanes
//!   found() -> fault*              [places], where the code that reads these logits reports that no token can be drawn
//! Optional
//!   tokens() -> const token_id*    the token of each column of the logits, each once: other tokens are not drafted.
//!                                  nullptr: columns are tokens
//!   columns() -> int               beside tokens(): the number of columns
//! Models
//!   block_diffusion; factorised makes a StepDrafter of one
template <class DrafterT>
concept BlockDrafter = Drafter<DrafterT> && requires(DrafterT& drafter, const text_batch& texts, cudaStream_t stream) {
  { drafter.vocab_size() } -> std::convertible_to<std::int32_t>;
  { drafter.block_length() } -> std::convertible_to<std::int32_t>;
  { drafter.propose_block(texts, stream).n_rows } -> std::convertible_to<std::int32_t>;
  { drafter.found() } -> std::same_as<fault*>;
};

//! espalier::ConditionedBlockDrafter on the device.
//!
//! Minimal definition, besides BlockDrafter
//!   corrects() -> bool             whether rows of nodes differ from the block's; it does not change
//!   reserve_corrections(max_nodes, max_texts)   takes memory for calls of corrected() about at most max_nodes nodes of
//!                                  each of max_texts trees; called if corrects(), after reserve()
//!   corrected(texts, nodes, stream) -> rows like propose_block's   [lanes][nodes.n] the logits after the path to each
//!                                  of these nodes: the rows of their depths in the last block, corrected
//! Models
//!   block_diffusion over a model that corrects
template <class DrafterT>
concept ConditionedBlockDrafter = BlockDrafter<DrafterT> &&
    requires(DrafterT& drafter, std::int32_t n, const text_batch& texts, node_list nodes, cudaStream_t stream) {
  { drafter.corrects() } -> std::convertible_to<bool>;
  drafter.reserve_corrections(n, n);
  { drafter.corrected(texts, nodes, stream) } -> std::same_as<decltype(drafter.propose_block(texts, stream))>;
};

//! espalier::SequenceDrafter on the device.
//!
//! Minimal definition, besides Drafter
//!   propose_runs(texts, stream) -> text_runs   the most likely next tokens of each text, as many as its tree has room
//!                                  for; at addresses that do not change
//! Models
//!   prompt_lookup
template <class DrafterT>
concept SequenceDrafter = Drafter<DrafterT> &&
    requires(DrafterT& drafter, const text_batch& texts, cudaStream_t stream) {
  { drafter.propose_runs(texts, stream) } -> std::same_as<text_runs>;
};

//! espalier::ReleasingDrafter on the device: release(place) gives up the rows of the text in this place.
//!
//! Models
//!   autoregressive over a SharingKVStore; joint, if one of its parts is a ReleasingDrafter
template <class DrafterT>
concept ReleasingDrafter = Drafter<DrafterT> && requires(DrafterT& drafter, std::int32_t place) {
  drafter.release(place);
};

//! A drafter that can follow trees which are cut or built anew once they have grown: a StepDrafter, or a joint with
//! such parts. renumber(texts, moved, stream) is called after the last propose() of a round, once or twice; from then
//! on rows() and commit() use the new numbers of the nodes.
//!
//! Models
//!   autoregressive, feature_steps, factorised, joint
template <class DrafterT>
concept RenumberingDrafter = Drafter<DrafterT> &&
    requires(DrafterT& drafter, const text_batch& texts, moved_nodes moved, cudaStream_t stream) {
  drafter.renumber(texts, moved, stream);
};

//! A drafter that keeps rows of each text in a cache of its own. catch_up(n) is called before reserve(), and tells the
//! drafter that rounds may accept up to n tokens which it was not asked about, because other parts of a joint draft,
//! too.
//!
//! Models
//!   autoregressive, block_diffusion
template <class DrafterT>
concept CatchingUpDrafter = Drafter<DrafterT> && requires(DrafterT& drafter, std::int32_t n) {
  drafter.catch_up(n);
};

//! A drafter that makes room for the longest path that a round may accept. limit_depth(n) is called before reserve():
//! no path of a round is deeper than n, whichever part of a joint drafts it.
//!
//! Models
//!   feature_steps, factorised
template <class DrafterT>
concept DepthLimitedDrafter = Drafter<DrafterT> && requires(DrafterT& drafter, std::int32_t n) {
  drafter.limit_depth(n);
};

//! A drafter that can be asked: a StepDrafter, BlockDrafter or SequenceDrafter. no_drafter is none of these, nor is a
//! joint of several drafters: its parts are asked instead.
template <class DrafterT>
concept AskableDrafter = StepDrafter<DrafterT> || BlockDrafter<DrafterT> || SequenceDrafter<DrafterT>;

//! Asks a drafter about nodes of the trees (the root alone, or nodes whose parents it was asked about), and returns its
//! answer: a StepDrafter's is text_rows of all nodes so far, a BlockDrafter's block_rows, a SequenceDrafter's
//! text_runs.
template <AskableDrafter DrafterT>
auto ask(const text_batch& texts, DrafterT& drafter, node_list nodes, cudaStream_t stream) {
  if constexpr (StepDrafter<DrafterT>) {
    drafter.propose(texts, nodes, stream);
    return text_rows(drafter.rows());
  } else if constexpr (BlockDrafter<DrafterT>) {
    const token_id* tokens = nullptr;
    if constexpr (requires { drafter.tokens(); }) tokens = drafter.tokens();
    return block_rows{drafter.propose_block(texts, stream), drafter.block_length(), drafter.found(), tokens};
  } else {
    return drafter.propose_runs(texts, stream);
  }
}

//! espalier::FeatureDrafter on the device: it reads the target's hidden states of each token when its row enters the
//! target's cache.
//!
//! Minimal definition, besides Drafter
//!   read(backend, place, first, n, stream)   reads, after a prefill pass, the states of rows 0 to n - 1: row i is of
//!                                     the text's token number first + i
//!   read(backend, texts, path, lanes, stream)   reads, in a round before the accepted tokens join the texts, the
//!                                     states along the accepted paths, each from the pending token on. lanes [lanes],
//!                                     on the device, says where the rows of each lane begin in the pass
//!   read(backend, chunks, n_chunks, n_rows, stream)   reads, in a round whose pass has also read prompts, the states
//!                                     of these chunks: chunks [n_chunks] on the device, n_rows rows in all at most
//! Models
//!   block_diffusion, feature_steps; factorised and joint over such a drafter
template <class DrafterT, class BackendT>
concept FeatureDrafter = Drafter<DrafterT> &&
    requires(DrafterT& drafter, const BackendT& backend, const text_batch& texts, std::int32_t n, path_view path,
             const batch_sequence* lanes, const prompt_chunk* chunks, cudaStream_t stream) {
  drafter.read(backend, n, n, n, stream);
  drafter.read(backend, texts, path, lanes, stream);
  drafter.read(backend, chunks, n, n, stream);
};

namespace detail {

// True if a part of the drafter is a StepDrafter, which keeps rows by node.
template <class DrafterT>
constexpr bool asks_by_steps() {
  return []<std::size_t... Index>(std::index_sequence<Index...>) {
    return (StepDrafter<part_type<DrafterT, Index>> || ...);
  }
  (std::make_index_sequence<n_parts<DrafterT>>());
}

template <class DrafterT>
concept FallsBehind = StepDrafter<DrafterT> || requires {
  requires DrafterT::falls_behind;
};

// True if rounds that do not draft leave a part of the drafter behind the text.
template <class DrafterT>
constexpr bool may_fall_behind() {
  return []<std::size_t... Index>(std::index_sequence<Index...>) {
    return (FallsBehind<part_type<DrafterT, Index>> || ...);
  }
  (std::make_index_sequence<n_parts<DrafterT>>());
}

}  // namespace detail

}  // namespace espalier::cuda
