// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <vector>

#include "espalier/core/util/stopwatch.hpp"
#include "espalier/model/parallel/communicator.hpp"

namespace espalier {

//! The clock of rank 0 on every rank, for measure_costs. How often that function repeats a pass depends on the time
//! that passes take, so ranks with clocks of their own would make different passes. With this clock all ranks make the
//! same passes and find the same costs.
//!
//!     const cost_model costs = measure_costs(drafter, target, kv, options, progress, rank_clock(ranks));
//!
//! The communicator is kept by reference.
//!
//! Complexity  now(): one all_gather of 8 bytes a rank
//! Errors      now(): rank_error
template <Communicator CommunicatorT>
class rank_clock {
 public:
  explicit rank_clock(CommunicatorT& ranks)
      : ranks_(&ranks), counts_(static_cast<std::size_t>(ranks.size()), sizeof(double)), all_(counts_.size()) {}

  //! Returns the seconds since a fixed moment of rank 0.
  double now() {
    all_[static_cast<std::size_t>(ranks_->rank())] = monotonic_clock::now();
    if (ranks_->size() > 1) ranks_->all_gather(reinterpret_cast<std::byte*>(all_.data()), counts_);
    return all_.front();
  }

 private:
  CommunicatorT* ranks_;
  std::vector<std::size_t> counts_;
  std::vector<double> all_;
};

}  // namespace espalier
