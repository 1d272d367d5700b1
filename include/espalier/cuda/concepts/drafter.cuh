// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>
#include <span>

#include "espalier/core/probabilities.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/text.cuh"

namespace espalier::cuda {

//! espalier::Drafter on the device.
//!
//! Minimal definition
//!   reserve(max_nodes, text, found)   rounds will ask about at most max_nodes nodes of trees after this text; logits
//!                                     that no token may be drawn from are reported to `found`. By the one decoder that
//!                                     it serves
//!   begin(context, n_known, stream)   follow a new text, which the device has by then; its first n_known tokens are
//!                                     those of the text before. Not captured
//!   ensure(n, max_context, stream)    before a round: the text may reach n tokens, drafted ones included; launches are
//!                                     made for max_context. Not captured
//!   commit(tree, path, stream)        the round is over; the path and one token will join the text
//!   capacity() -> int
//! Laws
//!   Those of espalier::Drafter. Nothing but begin synchronises
//! Models
//!   the refinements below; no_drafter
template <class DrafterT>
concept Drafter = requires(DrafterT& drafter, const DrafterT& fixed, std::int32_t n, text_view text, fault* found,
                           std::span<const token_id> context, tree_writer tree, path_view path, cudaStream_t stream) {
  drafter.reserve(n, text, found);
  drafter.begin(context, n, stream);
  drafter.ensure(n, n, stream);
  drafter.commit(tree, path, stream);
  { fixed.capacity() } -> std::convertible_to<std::int32_t>;
};

//! espalier::StepDrafter on the device.
//!
//! Minimal definition, besides Drafter
//!   vocab_size() -> int
//!   propose(tree, nodes, stream)   makes the rows of these nodes; the root alone comes first and opens the round. What
//!                                  is no_node is passed over
//!   rows() -> node_rows<float>     all rows of this round by node: probabilities, at addresses that do not change
//! Models
//!   autoregressive
template <class DrafterT>
concept StepDrafter = Drafter<DrafterT> &&
    requires(DrafterT& drafter, tree_writer tree, node_list nodes, cudaStream_t stream) {
  { drafter.vocab_size() } -> std::convertible_to<std::int32_t>;
  drafter.propose(tree, nodes, stream);
  { drafter.rows() } -> std::convertible_to<node_rows<float>>;
};

//! espalier::BlockDrafter on the device.
//!
//! Minimal definition, besides Drafter
//!   vocab_size(), block_length() -> int
//!   propose_block(stream) -> vocab_rows<float, __half or __nv_bfloat16>   [block_length] logits, at the same address
//!   every round
//!   found() -> fault*              where whoever reads these logits reports that no token can be drawn
//! Models
//!   block_diffusion
template <class DrafterT>
concept BlockDrafter = Drafter<DrafterT> && requires(DrafterT& drafter, cudaStream_t stream) {
  { drafter.vocab_size() } -> std::convertible_to<std::int32_t>;
  { drafter.block_length() } -> std::convertible_to<std::int32_t>;
  { drafter.propose_block(stream).n_rows } -> std::convertible_to<std::int32_t>;
  { drafter.found() } -> std::same_as<fault*>;
};

//! What a BlockDrafter answers: espalier::block_rows, and where who reads them reports what is not finite.
template <class NumberT>
struct block_rows {
  vocab_rows<NumberT> logits;
  fault* found = nullptr;
};

template <class NumberT>
block_rows(vocab_rows<NumberT>, fault*) -> block_rows<NumberT>;

//! A drafter of one of the kinds that can be asked: no_drafter cannot.
template <class DrafterT>
concept AskableDrafter = StepDrafter<DrafterT> || BlockDrafter<DrafterT>;

//! Asks a drafter about nodes of the tree, the root alone or nodes whose parents it was asked about, and gives its
//! answer: node_rows of all nodes so far, or block_rows.
template <AskableDrafter DrafterT>
auto ask(tree_writer tree, DrafterT& drafter, node_list nodes, cudaStream_t stream) {
  if constexpr (StepDrafter<DrafterT>) {
    drafter.propose(tree, nodes, stream);
    return node_rows<float>(drafter.rows());
  } else {
    return block_rows{drafter.propose_block(stream), drafter.found()};
  }
}

//! espalier::FeatureDrafter on the device: it reads the target's hidden states of each token when its row enters the
//! target's cache.
//!
//! Minimal definition, besides Drafter
//!   read(backend, first, n, stream)   after a pass of a prefill: rows 0 to n - 1 are the tokens from number `first` on
//!   read(backend, path, stream)       in a round, before the text is written on: the path's rows are the pending token
//!                                     and those after it
//! Models
//!   block_diffusion
template <class DrafterT, class BackendT>
concept FeatureDrafter = Drafter<DrafterT> &&
    requires(DrafterT& drafter, const BackendT& backend, std::int32_t n, path_view path, cudaStream_t stream) {
  drafter.read(backend, n, n, stream);
  drafter.read(backend, path, stream);
};

}  // namespace espalier::cuda
