// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>
#include <utility>

#include "espalier/core/option.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/cuda/core/forward_batch.cuh"

namespace espalier::cuda {

struct callable_options {
  std::int32_t vocab_size = 0;
  std::int32_t max_rows = 1025;          //!< longest batch, padding included
  std::int32_t max_positions = 1 << 30;  //!< longest text, in tokens; the cache may be shorter

  static constexpr void describe(auto see) {
    see(option{"vocab_size", &callable_options::vocab_size, "tokens of the vocabulary", 1, 1 << 30});
    see(option{"max_rows", &callable_options::max_rows, "rows of the longest batch, padding included", 1, 1 << 20});
    see(option{"max_positions", &callable_options::max_positions, "longest text, in tokens", 1, 1 << 30});
  }
};

//! A backend on the device over a function object, for example one that calls another inference engine. The function
//! gets the batch as addresses on the device, and enqueues its work in the stream.
//!
//!     auto target = cuda::make_callable_backend<__half>({.vocab_size = 151936}, my_model);
//!     // my_model(kv, batch, stream) -> vocab_rows<__half>; it stores keys and values in kv.view()
//!
//! Shapes      forward(kv, batch, stream) -> vocab_rows<NumberT>, [n_outputs][vocab_size], in the memory of the device
//! Pre         if a graph is to capture the function (option `replay` of decoders), it does not synchronise, allocate
//!             or copy to the host, and gives the same address for the same shapes
//! Errors      constructor: option_error for an option out of range. forward: the errors of the function; input_error
//!             if the function returns rows of another shape than asked for
template <class NumberT, class FunctionT>
class callable_backend {
 public:
  using number = NumberT;

  callable_backend(callable_options options, FunctionT forward)
      : options_(require_options(options)), forward_(std::move(forward)) {}

  std::int32_t vocab_size() const { return options_.vocab_size; }
  std::int32_t max_rows() const { return options_.max_rows; }
  std::int32_t max_positions() const { return options_.max_positions; }

  template <class KVStoreT>
  requires requires(FunctionT& f, KVStoreT& kv, const forward_batch_view& batch, cudaStream_t stream) {
    { f(kv, batch, stream) } -> std::same_as<vocab_rows<NumberT>>;
  }
  vocab_rows<NumberT> forward(KVStoreT& kv, const forward_batch_view& batch, cudaStream_t stream) {
    const vocab_rows<NumberT> logits = forward_(kv, batch, stream);
    if (logits.n_rows != batch.n_outputs || logits.vocab != options_.vocab_size) {
      raise<input_error>("the backend returned ", logits.n_rows, " rows of ", logits.vocab,
                         " logits, but was asked for ", batch.n_outputs, " rows of ", options_.vocab_size, ".");
    }
    return logits;
  }

 private:
  callable_options options_;
  FunctionT forward_;
};

//! Makes a callable_backend whose function type the compiler deduces.
template <class NumberT, class FunctionT>
callable_backend<NumberT, FunctionT> make_callable_backend(callable_options options, FunctionT forward) {
  return {options, std::move(forward)};
}

}  // namespace espalier::cuda
