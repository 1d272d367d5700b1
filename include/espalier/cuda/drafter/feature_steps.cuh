// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/concepts/state_rows.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/drafter/draft_batch.cuh"
#include "espalier/cuda/drafter/token_rows.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/sampling/sampler.hpp"

namespace espalier::cuda {

//! espalier::feature_steps on the device: a head that reads the target's hidden states of a text, and its own states
//! along a drafted path. Unlike the host's it takes no processor: tokens that a text's processor forbids may be
//! drafted, and the target's rows then have no probability for them.
//!
//! The model is kept by reference when given as an lvalue, by value otherwise. It has vocab_size(), columns(),
//! tokens(), max_positions(), max_rows(), make_context(max_texts, max_columns), and, with work in a stream,
//!   read(context, backend, state_rows, stream)   takes hidden states, any number of rows
//!   forward(context, batch, stream, reads) -> vocab_rows   makes a pass over the rows of draft_batch, whose reads()
//!                                                say which state each row reads; without `reads`, over rows of texts
//!
//! Shapes      rows() [places][max_nodes + 1][vocab], the row of a node at the number that the node had when it was
//!             asked about
//! Complexity  propose: one pass over as many rows for each lane as the list has entries, padding included. For the
//!             root there are as many rows as a path of the policy's trees may have tokens, and one more: the rows of
//!             the text's last tokens are made anew, from the target's states in place of those that a round drafted.
//!             begin: passes over the text's tokens that were not read before. No synchronisation, no allocation in a
//!             round
//! Law         StepDrafter's; given the same numbers, the rows are the host's. Hidden states are read as
//!             block_diffusion reads them
//! Errors      input_error for an empty context; option_error for a model that takes fewer rows than rounds of all
//!             texts may ask about; faults of the head's logits
//! Source      as espalier::feature_steps
template <class ModelT>
class feature_steps {
  using model_type = std::remove_reference_t<ModelT>;
  using context_type = decltype(std::declval<model_type&>().make_context(1, 1));

 public:
  using number = typename model_type::number;

  explicit feature_steps(ModelT&& model, sampling_options sampling = {.temperature = 1.0F})
      : model_(std::forward<ModelT>(model)), context_(model_.make_context(1, 0)), rows_(sampling) {}

  std::int32_t vocab_size() const { return model_.vocab_size(); }
  std::int32_t capacity() const { return model_.max_positions(); }

  //! Prepares for rounds whose trees are no deeper than n. Called before reserve(); without it they may be as deep as
  //! they may have nodes.
  void limit_depth(std::int32_t n) { depth_ = n; }

  void reserve(std::int32_t max_nodes, std::int32_t max_texts, fault* found) {
    n_pending_ = (depth_ >= 0 ? depth_ : max_nodes) + 1;
    require_option("max_rows of the draft head", model_.max_rows(), max_texts * (std::max)(max_nodes, n_pending_),
                   1 << 30);
    found_ = found;
    n_nodes_ = max_nodes + 1;
    context_ = model_.make_context(max_texts, n_pending_ + max_nodes);
    batch_ = draft_batch(max_nodes, max_texts, 0, capacity(), n_pending_, false, true);
    row_of_ = device_array<std::int32_t>(static_cast<std::size_t>(n_nodes_) * static_cast<std::size_t>(max_texts));
    rows_.reserve(n_nodes_, max_texts, vocab_size(), model_.columns(), model_.tokens());
  }

  void begin(std::int32_t place, text_view text, std::span<const token_id> context, std::int32_t n_known,
             cudaStream_t stream) {
    if (context.empty()) raise<input_error>("the context is empty; a drafter needs at least one token to go on from.");
    is_open_ = false;
    prefill_.run_head(model_, context_, place, text, static_cast<std::int32_t>(context.size()), n_known, n_pending_,
                      stream);
  }

  void ensure(std::int32_t, std::int32_t, cudaStream_t) const {}

  //! Reads the states of rows 0 to n - 1 of the target's last pass; the rows are the n tokens of one text from number
  //! `first` on.
  template <class BackendT>
  void read(const BackendT& backend, std::int32_t place, std::int32_t first, std::int32_t n, cudaStream_t stream) {
    model_.read(context_, backend, state_rows::of_prefill(place, first, n), stream);
  }

  //! Reads, from the target's last pass, the states of the rows of the accepted paths. Each path begins with the
  //! pending token of its text.
  template <class BackendT>
  void read(const BackendT& backend, const text_batch& texts, path_view path, const batch_sequence* lanes,
            cudaStream_t stream) {
    model_.read(context_, backend, state_rows::of(texts, path, lanes, n_pending_), stream);
  }

  //! Reads the states of the prompt chunks that the target's last pass has read, at most n_rows rows in all.
  template <class BackendT>
  void read(const BackendT& backend, const prompt_chunk* chunks, std::int32_t n_chunks, std::int32_t n_rows,
            cudaStream_t stream) {
    model_.read(context_, backend, state_rows::of_chunks(chunks, n_chunks, n_rows), stream);
  }

  void propose(const text_batch& texts, node_list nodes, cudaStream_t stream) {
    const bool opens = !is_open_;
    const forward_batch_view batch = opens ? batch_.root(texts, stream) : batch_.level(texts, nodes, stream);
    if (opens) row_of_.fill_bytes(0xFF, stream);
    is_open_ = true;
    rows_.make(model_.forward(context_, batch, stream, batch_.reads()), texts, batch_.asked(batch.n_outputs / texts.n),
               row_of_.data(), found_, row_origin::after_node(row_origin::model::draft, 0, root_node), stream);
  }

  text_rows rows() const { return {rows_.all(), row_of_.data(), n_nodes_}; }

  void renumber(const text_batch& texts, moved_nodes moved, cudaStream_t stream) const {
    batch_.renumber(texts, moved, row_of_.data(), stream);
  }

  //! Does nothing on the device: the next round makes the rows of the accepted tokens anew, from the target's states.
  void commit(const text_batch&, path_view, cudaStream_t) { is_open_ = false; }

 private:
  ModelT model_;
  context_type context_;
  detail::token_rows<number> rows_;
  fault* found_ = nullptr;
  draft_batch batch_;
  prefill prefill_;
  device_array<std::int32_t> row_of_;  // [places][n_nodes]
  std::int32_t n_nodes_ = 0;           // nodes of a tree, root included
  std::int32_t depth_ = -1;            // depth of the deepest path of a round; -1: not known
  std::int32_t n_pending_ = 2;         // tokens of a text, at most, whose rows a round may lack when it begins
  bool is_open_ = false;               // whether nodes were asked about in the round that is being enqueued
};

template <class ModelT>
feature_steps(ModelT&&) -> feature_steps<ModelT>;
template <class ModelT>
feature_steps(ModelT&&, sampling_options) -> feature_steps<ModelT>;

}  // namespace espalier::cuda
