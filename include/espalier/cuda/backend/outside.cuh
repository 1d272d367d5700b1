// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/halves.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/cuda/backend/callable.cuh"
#include "espalier/cuda/core/forward_batch.cuh"

namespace espalier::cuda {

//! The target's backend on the device for an engine that makes the passes itself, between begin_step() and end_step()
//! of a decoder or a batch_decoder. It says how large passes may be, and makes no pass.
//!
//! Errors      constructor: option_error for an option out of range. forward: input_error, so that step() of a decoder
//!             over it raises that error
template <class NumberT = float>
class outside_backend {
 public:
  using number = NumberT;
  static constexpr bool is_outside = true;

  explicit outside_backend(callable_options options) : options_(require_options(options)) {}

  std::int32_t vocab_size() const { return options_.vocab_size; }
  std::int32_t max_rows() const { return options_.max_rows; }
  std::int32_t max_positions() const { return options_.max_positions; }

  template <class KVStoreT>
  vocab_rows<NumberT> forward(KVStoreT&, const forward_batch_view&, cudaStream_t) {
    raise<input_error>("the passes of this decoder are made outside: call begin_step() and end_step(), not step().");
  }

 private:
  callable_options options_;
};

}  // namespace espalier::cuda
