// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/sharing.cpp
#pragma once

#include <cstdint>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"

namespace espalier {

//! Checks that logits have the shape [n][vocab]; if n is 0, their vocabulary may have any size.
//!
//! Errors      input_error if they have another shape, or are a null pointer in place of n > 0 rows
template <class NumberT>
void require_rows_of(const vocab_rows<NumberT>& logits, std::int32_t n, std::int32_t vocab) {
  if (logits.n_rows != n || (n > 0 && logits.vocab != vocab)) {
    raise<input_error>("the backend returned ", logits.n_rows, " rows of ", logits.vocab, " logits, but was asked for ",
                       n, " rows of ", vocab, ".");
  }
  if (n > 0 && logits.data == nullptr)
    raise<input_error>("the backend returned no logits but a null pointer, in place of ", n, " rows.");
}

//! Runs a forward pass, checks that it gave as many rows as were asked for, each of `columns` logits, the vocabulary's
//! length if that is not given, and returns them.
//!
//! Errors      input_error as require_rows_of; the backend's own errors pass through
template <class BackendT, class KVStoreT>
requires Backend<BackendT, KVStoreT>
auto checked_forward(BackendT& backend, KVStoreT& kv, forward_batch_view batch, std::int32_t columns) {
  const auto logits = backend.forward(kv, batch);
  require_rows_of(logits, static_cast<std::int32_t>(batch.outputs.size()), columns);
  return logits;
}
template <class BackendT, class KVStoreT>
requires Backend<BackendT, KVStoreT>
auto checked_forward(BackendT& backend, KVStoreT& kv, forward_batch_view batch) {
  return checked_forward(backend, kv, batch, backend.vocab_size());
}

}  // namespace espalier
