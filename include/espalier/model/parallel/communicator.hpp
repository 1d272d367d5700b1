// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/parallel/parallel_backend.cpp
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/core/error.hpp"

namespace espalier {

//! The error of ranks that can no longer work together: one is dead or late, a call between them failed, or they were
//! about to do different things. what() names the rank. The communicator cannot be used afterwards: go on with new
//! ranks from the last committed token.
struct rank_error : error {
  using error::error;
};

//! The number of calls that one rank has made so far, and of bytes that it has sent to other ranks. A byte counts once
//! for each rank that it goes to.
struct rank_traffic {
  std::int64_t calls = 0;
  std::int64_t bytes = 0;

  friend bool operator==(const rank_traffic&, const rank_traffic&) = default;
};

//! The exchange of bytes between the ranks of one model, which are processes on one or several machines, or threads of
//! one process.
//!
//! Minimal definition
//!   rank(), size() -> int               0 <= rank() < size()
//!   all_gather(data, counts)            data: a block for each rank, one after another, block r of counts[r] bytes;
//!                                       before the call this rank's block is filled, afterwards all blocks are
//!   all_to_all(from, to_each, to, from_each)   from: a block for each rank, of to_each[r] bytes; to: a block of each
//!                                       rank, of from_each[r] bytes
//!   traffic() -> rank_traffic           the calls of this rank, and the bytes that it has sent
//! Laws
//!   All ranks make the same calls in the same order, with the same counts; each ends, for every rank, in the same
//!   bytes or in an error within a stated time.
//! Errors
//!   rank_error that names the rank that is dead or late; every later call raises a rank_error, too
//! Models
//!   mpi_communicator
template <class CommunicatorT>
concept Communicator = requires(CommunicatorT& ranks, const CommunicatorT& seen, std::byte* data, const std::byte* from,
                                std::span<const std::size_t> counts) {
  { seen.rank() } -> std::convertible_to<int>;
  { seen.size() } -> std::convertible_to<int>;
  { seen.traffic() } -> std::same_as<rank_traffic>;
  ranks.all_gather(data, counts);
  ranks.all_to_all(from, counts, data, counts);
};

}  // namespace espalier
