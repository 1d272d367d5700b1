// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/double_rows.cpp
#pragma once

#include <cstdint>
#include <utility>

#include "espalier/concepts/backend.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"

namespace espalier {

//! A backend made of any function object: one's own inference stack behind one call.
//!
//! Shapes      forward(kv, batch) -> vocab_rows<float or double>, [number of batch.outputs][vocab]
//! Errors      constructor: option_error for a vocabulary size out of range. forward: the function's own; the caller
//!             (checked_forward) checks the shape of the rows
template <class FunctionT>
class callable_backend {
 public:
  callable_backend(std::int32_t vocab_size, FunctionT forward) : vocab_size_(vocab_size), forward_(std::move(forward)) {
    require_option("vocabulary size", vocab_size, 1, 1 << 30);
  }

  std::int32_t vocab_size() const { return vocab_size_; }

  template <class KVStoreT>
  requires requires(FunctionT& f, KVStoreT& kv, forward_batch_view batch) {
    { f(kv, batch) } -> detail::FloatOrDoubleRows;
  }
  auto forward(KVStoreT& kv, forward_batch_view batch) { return forward_(kv, batch); }

 private:
  std::int32_t vocab_size_;
  FunctionT forward_;
};

}  // namespace espalier
