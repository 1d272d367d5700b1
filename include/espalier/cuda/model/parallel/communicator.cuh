// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <concepts>
#include <cstddef>

namespace espalier::cuda {

//! espalier::Communicator on the device: what goes between ranks is work in a stream, of blocks of one size.
//!
//! Minimal definition
//!   rank(), size() -> int               0 <= rank() < size()
//!   begin_pass(stream)                  from here to end_pass() the stream waits for other ranks
//!   all_gather(data, bytes, stream)     data: a block of so many bytes for each rank, one after another; this rank's
//!                                       is filled before, all are after
//!   all_to_all(from, to, bytes, stream) from: such a block for each rank; to: one of each rank
//!   end_pass(rows, bytes, stream)       the pass has ended, and has left these rows; where a call between ranks has
//!                                       failed, every byte of them becomes 0xFF, which is NaN
//!   raise_failure()                     throws what has failed, if anything has
//! Laws
//!   All ranks make the same calls in the same order, with the same bytes. No call synchronises or allocates: a graph
//!   can capture a pass, and a replay makes its calls again. A pass ends, on every rank, in the same blocks or in a
//!   failure within a stated time; then no stream waits any more.
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
