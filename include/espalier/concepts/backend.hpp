// SPDX-License-Identifier: BSL-1.0
// Tested by tests/concepts/minimal.cpp
#pragma once

#include <concepts>
#include <cstdint>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

#include "espalier/concepts/kv_store.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"

namespace espalier {

namespace detail {

template <class BackendT>
concept HasVocabSize = requires(const BackendT& backend) {
  { backend.vocab_size() } -> std::convertible_to<std::int32_t>;
};

template <class LogitsT>
concept FloatOrDoubleRows = std::same_as<LogitsT, vocab_rows<float>> || std::same_as<LogitsT, vocab_rows<double>>;

template <class BackendT>
concept HasMaxRows = requires(const BackendT& backend) {
  { backend.max_rows() } -> std::convertible_to<std::int32_t>;
};

template <class BackendT>
concept HasMaxPositions = requires(const BackendT& backend) {
  { backend.max_positions() } -> std::convertible_to<std::int32_t>;
};

template <class BackendT>
concept KeepsHiddenStates = requires(const BackendT& backend, std::int32_t row) {
  { backend.hidden_size() } -> std::convertible_to<std::int32_t>;
  { backend.hidden_state(row) } -> std::convertible_to<std::span<const float>>;
};

template <class BackendT>
concept SaysWhetherMaxima = requires(const BackendT& backend) {
  { backend.gives_maxima() } -> std::same_as<bool>;
};

template <class BackendT>
concept IsOutside = requires {
  requires BackendT::is_outside;
};

template <class BackendT, class KVStoreT>
concept HasForward = requires(BackendT& backend, KVStoreT& kv, forward_batch_view batch) {
  { backend.forward(kv, batch) } -> FloatOrDoubleRows;
};

}  // namespace detail

//! A model that can run a masked, batched forward pass over a given KV store.
//!
//! Minimal definition
//!   vocab_size() -> int
//!   forward(kv, batch) -> vocab_rows<float or double>   one row of logits for each entry of batch.outputs, valid until
//!                                       the next call; minus infinity is a token of probability 0. The keys and values
//!                                       of each batch row are in its cache slot afterwards
//! Optional
//!   max_rows() -> int                   rows of the longest batch that it takes at once; without it there is no limit
//!   tokens() -> span<const token_id>    of a draft alone: the token of each column of the logits, each once and
//!                                       below vocab_size(); other tokens are never drafted. Empty, as without it:
//!                                       columns are tokens
//!   max_positions() -> int              tokens of the longest text, or window of a text, that it can read; without it
//!                                       the cache alone limits them
//!   hidden_size() -> int, hidden_state(row) -> span<const float>   the last hidden state, from which the logits are
//!                                       made, of a row of the last batch: [hidden_size()], valid until the next pass;
//!                                       a hidden_size() of 0 says that the backend keeps none
//!   gives_maxima() -> bool              true if a row may hold its greatest logit alone, and minus infinity elsewhere:
//!                                       then a decoder refuses parts that read more of a row
//!   static constexpr bool is_outside    true if an engine makes the passes, between two halves of a step: forward()
//!                                       raises an error; see outside_backend
//! Laws
//!   The row of a node equals the row that plain decoding along its path gives: the same numbers within the model's own
//!   rounding, bitwise where the model is batch-invariant.
//!   forward changes no cache row outside batch.slots.
//! Errors
//!   May throw: the text then stands at its last committed token and can go on.
//! Models
//!   callable_backend, text_backend, llama_backend, parallel_backend, llama_cpp_backend, torch_backend, outside_backend
template <class BackendT, class KVStoreT>
concept Backend = detail::HasVocabSize<BackendT> && detail::HasForward<BackendT, KVStoreT>;

//! The number type of a backend's logits, and so of all rows that are made from them: float or double.
template <class BackendT, class KVStoreT>
requires Backend<BackendT, KVStoreT>
using logit_number = std::remove_const_t<std::remove_pointer_t<
    decltype(std::declval<BackendT&>().forward(std::declval<KVStoreT&>(), forward_batch_view{}).data)>>;

//! Number of rows of the longest batch that a backend takes at once; 2^31 - 1 where it has no max_rows().
template <class BackendT>
std::int32_t max_rows_of(const BackendT& backend) {
  if constexpr (detail::HasMaxRows<BackendT>) return backend.max_rows();
  return (std::numeric_limits<std::int32_t>::max)();
}

//! Number of tokens of the longest text that a backend can read through this cache; 2^30 where the cache is a sliding
//! window.
//!
//! Errors      option_error where a window with its scratch is longer than the texts that the backend can read
template <class BackendT, class KVStoreT>
std::int32_t context_length(const BackendT& backend, const KVStoreT& kv) {
  constexpr bool slides = WindowedKVStore<KVStoreT>;
  const std::int32_t capacity = kv.capacity();
  if constexpr (detail::HasMaxPositions<BackendT>) {
    const std::int32_t positions = backend.max_positions();
    if (slides && positions < capacity) {
      raise<option_error>("the cache's window and scratch have ", capacity, " positions, but the model has ", positions,
                          ": lower window, block or scratch.");
    }
    if (positions < capacity) return positions;
  }
  return slides ? std::int32_t{1} << 30 : capacity;
}

}  // namespace espalier
