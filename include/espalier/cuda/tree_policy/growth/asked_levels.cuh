// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/tree_policy/fixed.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "espalier/core/token.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/tree_policy/growth/grow_level.cuh"

namespace espalier::cuda::detail {

// The lists of nodes from which trees are grown level after level: first the root, then the nodes that grow_level
// lists. The lists are in the memory of the device.
class asked_levels {
 public:
  asked_levels() = default;
  // `widths` has, for each level, how many nodes may be asked about; 1 for the first level. A width of 0, or the end of
  // `widths`, ends the growth.
  explicit asked_levels(std::vector<std::int32_t> widths)
      : widths_(std::move(widths)), widest_(*std::max_element(widths_.begin(), widths_.end())) {}

  // Largest number of nodes that may be asked about in one level.
  std::int32_t widest() const { return widest_; }

  void reserve(std::int32_t max_texts) {
    asked_ = device_array<node_id>(static_cast<std::size_t>(max_texts) * static_cast<std::size_t>(widest_));
  }

  // Starts a round. Returns the list of the root alone.
  node_list begin() {
    level_ = 0;
    return wanted();
  }

  // Enqueues the kernel that appends a step's draws from the nodes that are wanted now. Returns the list of the nodes
  // that are wanted next.
  template <class StepT>
  node_list grow(const text_batch& texts, const StepT& step, cudaStream_t stream) {
    const node_list asked = wanted();
    ++level_;
    launch_level(texts, step, asked, {asked_.data(), wanted().n, widest_}, stream);
    return wanted();
  }

  // True if no level has been grown in this round.
  bool at_root() const { return level_ == 0; }
  // The list of the nodes that are wanted now; of length 0 after the last level.
  node_list wanted() const {
    if (at_root()) return {root_.data(), widths_[0], 0};
    return {asked_.data(), level_ < widths_.size() ? widths_[level_] : 0, widest_};
  }

 private:
  std::vector<std::int32_t> widths_;
  std::int32_t widest_ = 0;
  std::size_t level_ = 0;
  device_array<node_id> root_{std::span(&root_node, 1)};
  device_array<node_id> asked_;  // [texts][widest]
};

}  // namespace espalier::cuda::detail
