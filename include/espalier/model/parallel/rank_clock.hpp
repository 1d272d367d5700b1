// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <chrono>
#include <cstddef>
#include <vector>

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
//! Errors      of now(): rank_error
template <Communicator CommunicatorT>
class rank_clock {
 public:
  using duration = std::chrono::steady_clock::duration;
  using rep = duration::rep;
  using period = duration::period;
  using time_point = std::chrono::steady_clock::time_point;
  static constexpr bool is_steady = true;

  explicit rank_clock(CommunicatorT& ranks)
      : ranks_(&ranks), counts_(static_cast<std::size_t>(ranks.size()), sizeof(rep)), all_(counts_.size()) {}

  time_point now() {
    all_[static_cast<std::size_t>(ranks_->rank())] = std::chrono::steady_clock::now().time_since_epoch().count();
    if (ranks_->size() > 1) ranks_->all_gather(reinterpret_cast<std::byte*>(all_.data()), counts_);
    return time_point(duration(all_.front()));
  }

 private:
  CommunicatorT* ranks_;
  std::vector<std::size_t> counts_;
  std::vector<rep> all_;
};

}  // namespace espalier
