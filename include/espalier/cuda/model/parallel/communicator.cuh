// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/parallel/parallel_backend.cu
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>

namespace espalier::cuda {

//! A communicator of ranks on the device, as espalier::Communicator is on the host. Its calls are work in a stream,
//! which moves blocks of one size between ranks.
//!
//! Minimal definition
//!   rank(), size() -> int               0 <= rank() < size()
//!   begin_pass(stream)                  a pass begins: until end_pass() the stream may wait for other ranks
//!   all_gather(data, bytes, stream)     data: a block of so many bytes for each rank, one after another. This rank's
//!                                       block is filled before the call, all blocks are after it
//!   all_to_all(from, to, bytes, stream) sends block r of `from` to rank r; block r of `to` comes from rank r
//!   end_pass(rows, bytes, stream)       the pass ends, and these rows are its result; if a call between ranks has
//!                                       failed, every byte of the rows becomes 0xFF, which is NaN
//!   raise_failure()                     throws the failure of a call between ranks, if there was one
//! Laws
//!   All ranks make the same calls in the same order, with blocks of the same size. No call synchronises or allocates:
//!   a graph can capture a pass, and a replay makes its calls again. A pass ends within a stated time, on every rank
//!   with the same blocks or with a failure; then no stream waits any more.
//! Errors
//!   rank_error, from raise_failure() and from every later call between ranks
//! Models
//!   nccl_communicator
template <class CommunicatorT>
concept Communicator = requires(CommunicatorT& ranks, const CommunicatorT& seen, void* data, const void* from,
                                std::size_t bytes, cudaStream_t stream) {
  { seen.rank() } -> std::convertible_to<int>;
  { seen.size() } -> std::convertible_to<int>;
  ranks.begin_pass(stream);
  ranks.all_gather(data, bytes, stream);
  ranks.all_to_all(from, data, bytes, stream);
  ranks.end_pass(data, bytes, stream);
  ranks.raise_failure();
};

}  // namespace espalier::cuda
