// SPDX-License-Identifier: BSL-1.0
// Tested by tests/decoder/halves.cpp
#pragma once

#include <cstdint>

#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"

namespace espalier {

//! A backend that makes no passes: it takes the place of the target's backend, or of an autoregressive drafter's, where
//! an engine makes the passes itself, between begin_step() and end_step() of a decoder or a batch_decoder. It says how
//! large passes may be.
//!
//! Errors      constructor: option_error for sizes out of range. forward: always input_error, so that step() of a
//!             decoder with this backend fails
template <class NumberT = float>
class outside_backend {
 public:
  static constexpr bool is_outside = true;

  explicit outside_backend(std::int32_t vocab_size, std::int32_t max_rows = 1 << 30)
      : vocab_size_(vocab_size), max_rows_(max_rows) {
    require_option("vocabulary size", vocab_size, 1, 1 << 30);
    require_option("max_rows", max_rows, 1, 1 << 30);
  }

  std::int32_t vocab_size() const { return vocab_size_; }
  std::int32_t max_rows() const { return max_rows_; }

  template <class KVStoreT>
  vocab_rows<NumberT> forward(KVStoreT&, const forward_batch_view&) {
    raise<input_error>("the passes of this decoder are made outside: call begin_step() and end_step(), not step().");
  }

 private:
  std::int32_t vocab_size_, max_rows_;
};

}  // namespace espalier
