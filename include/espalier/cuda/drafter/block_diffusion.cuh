// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/state_rows.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/forward/prefill.cuh"
#include "espalier/drafter/block_diffusion.hpp"

namespace espalier::cuda {

namespace detail {

template <class ModelT>
concept Corrects = requires(ModelT& model, const text_batch& texts, node_list nodes, cudaStream_t stream) {
  model.corrected(model.make_context(1), texts, nodes, stream);
};

template <class ModelT>
concept ReadsTokens = requires(ModelT& model, prefill& passes, text_view text, std::int32_t n, cudaStream_t stream,
                               decltype(std::declval<ModelT&>().make_context(1, 1))& context) {
  model.begin(passes, context, n, text, n, n, stream);
};

}  // namespace detail

//! espalier::block_diffusion on the device: a model that reads the target's hidden states gives, in one pass, the
//! logits of each of the next L tokens.
//!
//! The model is kept by reference when given as an lvalue, by value otherwise. It has vocab_size(), block_length(),
//! max_positions(), make_context(max_texts), and, with work in a stream,
//!   read(context, backend, state_rows, stream)       takes hidden states, any number of rows
//!   forward(context, texts, length, stream) -> vocab_rows   the logits of the tokens after the last token of each text
//!   tokens() -> const token_id*, columns() -> int    if they are there: as BlockDrafter's
//!   corrects(), reserve_corrections(context, max_nodes, max_texts), corrected(context, texts, nodes, stream)   if they
//!                                                    are there: as ConditionedBlockDrafter's, for the last forward()
//!   make_context(max_texts, n_behind), begin(prefill, context, place, text, n_tokens, n_known, stream)   if they are
//!                                                    there: the model also has rows of a text's tokens. forward()
//!                                                    makes the last n_behind of each text, begin() those before them
//!
//! Shapes      propose_block: [lanes][block_length][vocab]
//! Complexity  propose_block: one pass of the model. begin: passes over the tokens that were not read before, if the
//!             model has rows of them. No synchronisation, no allocation in a round
//! Law         BlockDrafter's. Each token's states are read once, when its row enters the target's cache: by
//!             read(backend, place, first, n) after a pass of a prefill, by read(backend, texts, path, lanes) in a
//!             round before the texts grow, and by read(backend, chunks, n_chunks, n_rows) for prompts that the round
//!             reads. The tokens whose states were read are those that the target's cache holds
//! Errors      input_error for an empty context; option_error for a length beyond the model's, or more texts, or more
//!             rows of a pass, than the model was made for
//! Pre         trees are no deeper than block_length(); in a joint, no deeper than block_length() or the number that
//!             was given to catch_up(), whichever is larger
//! Source      Chen et al., DFlash
template <class ModelT>
class block_diffusion {
  using model_type = std::remove_reference_t<ModelT>;
  using context_type = decltype(std::declval<model_type&>().make_context(1));

 public:
  //! Whether a round that does not ask the drafter leaves it behind the text, as Drafter says.
  static constexpr bool falls_behind = detail::ReadsTokens<model_type>;

  explicit block_diffusion(ModelT&& model, block_diffusion_options options = {})
      : model_(std::forward<ModelT>(model)), context_(model_.make_context(1)) {
    require_option("length of a block", options.length, 0, model_.block_length());
    length_ = deepest_ = options.length > 0 ? options.length : model_.block_length();
  }

  std::int32_t vocab_size() const { return model_.vocab_size(); }
  std::int32_t block_length() const { return length_; }
  std::int32_t columns() const {
    if constexpr (requires { model_.columns(); }) return model_.columns();
    return vocab_size();
  }
  const token_id* tokens() const {
    if constexpr (requires { model_.tokens(); }) return model_.tokens();
    return nullptr;
  }
  std::int32_t capacity() const { return model_.max_positions(); }

  //! Prepares for rounds that accept up to n_tokens tokens that this drafter was not asked about. Called before
  //! reserve().
  void catch_up(std::int32_t n_tokens) { deepest_ = (std::max)(length_, n_tokens); }

  void reserve(std::int32_t, std::int32_t max_texts, fault* found) {
    if constexpr (falls_behind) {
      context_ = model_.make_context(max_texts, deepest_ + 1);
    } else if (max_texts > 1) {
      context_ = model_.make_context(max_texts);
    }
    found_ = found;
  }

  bool corrects() const requires detail::Corrects<model_type> { return model_.corrects(); }
  void reserve_corrections(std::int32_t max_nodes, std::int32_t max_texts) requires detail::Corrects<model_type> {
    model_.reserve_corrections(context_, max_nodes, max_texts);
  }
  auto corrected(const text_batch& texts, node_list nodes, cudaStream_t stream) requires detail::Corrects<model_type> {
    return model_.corrected(context_, texts, nodes, stream);
  }

  void begin([[maybe_unused]] std::int32_t place, [[maybe_unused]] text_view text, std::span<const token_id> context,
             [[maybe_unused]] std::int32_t n_known, [[maybe_unused]] cudaStream_t stream) {
    if (context.empty()) raise<input_error>("the context is empty; a drafter needs at least one token to go on from.");
    if constexpr (falls_behind)
      model_.begin(prefill_, context_, place, text, static_cast<std::int32_t>(context.size()), n_known, stream);
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
    model_.read(context_, backend, state_rows::of(texts, path, lanes, deepest_ + 1), stream);
  }

  //! Reads the states of the prompt chunks that the target's last pass has read, at most n_rows rows in all.
  template <class BackendT>
  void read(const BackendT& backend, const prompt_chunk* chunks, std::int32_t n_chunks, std::int32_t n_rows,
            cudaStream_t stream) {
    model_.read(context_, backend, state_rows::of_chunks(chunks, n_chunks, n_rows), stream);
  }

  auto propose_block(const text_batch& texts, cudaStream_t stream) {
    return model_.forward(context_, texts, length_, stream);
  }

  //! Does nothing: read() has already seen the states of all committed rows.
  void commit(const text_batch&, path_view, cudaStream_t) const {}

  fault* found() const { return found_; }

 private:
  ModelT model_;
  context_type context_;
  prefill prefill_;
  std::int32_t length_ = 0;
  std::int32_t deepest_ = 0;  // largest depth of the accepted paths whose states are read
  fault* found_ = nullptr;
};

template <class ModelT>
block_diffusion(ModelT&&) -> block_diffusion<ModelT>;
template <class ModelT>
block_diffusion(ModelT&&, block_diffusion_options) -> block_diffusion<ModelT>;

}  // namespace espalier::cuda
