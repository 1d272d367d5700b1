// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/backend/on_host.cu
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstdint>

#include "espalier/core/probabilities.hpp"
#include "espalier/cuda/core/forward_batch.cuh"

namespace espalier::cuda {

namespace detail {

template <class BackendT>
concept HasShape = requires(const BackendT& backend) {
  typename BackendT::number;
  { backend.vocab_size() } -> std::convertible_to<std::int32_t>;
  { backend.max_rows() } -> std::convertible_to<std::int32_t>;
  { backend.max_positions() } -> std::convertible_to<std::int32_t>;
};

template <class BackendT, class KVStoreT>
concept EnqueuesForward = requires(BackendT& backend, KVStoreT& kv, forward_batch_view batch, cudaStream_t stream) {
  { backend.forward(kv, batch, stream) } -> std::same_as<vocab_rows<typename BackendT::number>>;
};

// A backend, or a drafter over one, with raise_failure(), which throws an exception of its work on the host: see
// Backend.
template <class PartT>
concept KeepsFailure = requires(PartT& part) {
  part.raise_failure();
};

}  // namespace detail

//! espalier::Backend on the device: its forward pass is work in a stream, over a batch that kernels fill in.
//!
//! Minimal definition
//!   typename number               type of its logits: float, __half or __nv_bfloat16
//!   vocab_size(), max_rows(), max_positions() -> int
//!   forward(kv, batch, stream) -> vocab_rows<number>   enqueues the pass; returns where on the device the rows of
//!                                 logits will be, one for each output of the batch: the same address for the same
//!                                 shapes. A text's processor changes the rows in place
//! Optional
//!   tokens() -> const token_id*, columns() -> int   of a draft alone: the token of each column of the logits, in the
//!                                 memory of the device, and their number; null, as without it: columns are tokens
//!   raise_failure()               throws the first exception of work on the host, or between ranks, since the last
//!                                 call, if there is one; a drafter over such a backend has it, too
//!   static constexpr bool is_outside   true if an engine makes the passes, between two halves of a step: forward()
//!                                 raises an error; see outside_backend
//! Laws
//!   The laws of espalier::Backend. forward does not synchronise and does not allocate: a graph can capture it, and a
//!   replay computes the batch as it is on the device at that time. Rows of padding change no other row.
//! Errors
//!   forward may throw while it enqueues the work. The code that reads the logits reports those that are NaN or plus
//!   infinity
//! Models
//!   callable_backend, llama_backend, on_host, outside_backend, parallel_backend; torch_backend, except that no graph
//!   can capture its passes
template <class BackendT, class KVStoreT>
concept Backend = detail::HasShape<BackendT> && detail::EnqueuesForward<BackendT, KVStoreT>;

}  // namespace espalier::cuda
