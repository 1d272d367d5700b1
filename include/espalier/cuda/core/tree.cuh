// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/core/error.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/device_array.cuh"

namespace espalier::cuda {

//! The draft tree of one round, in the memory of the device. Kernels get its writer by value.
//!
//! Errors      option_error for a capacity outside 0 to 1048576; cuda_error where there is no memory
class tree {
 public:
  //! Capacity in draws: the root is not counted.
  explicit tree(std::int32_t capacity) : capacity_(capacity) {
    require_option("tree capacity", capacity, 0, 1 << 20);
    const auto nodes = static_cast<std::size_t>(capacity) + 1;
    words_ = device_array<std::int32_t>(5 * nodes + 2 * static_cast<std::size_t>(capacity));
    log_probs_ = device_array<float>(2 * nodes);
    size_ = device_array<tree_size>(1);
  }

  std::int32_t capacity() const { return capacity_; }

  //! Addresses on the device: to be used in kernels.
  tree_writer writer() const {
    const std::size_t nodes = static_cast<std::size_t>(capacity_) + 1;
    std::int32_t* word = words_.data();
    float* log_prob = log_probs_.data();
    tree_writer w;
    w.token = word;
    w.parent = word + nodes;
    w.depth = word + 2 * nodes;
    w.first_draw = word + 3 * nodes;
    w.last_draw = word + 4 * nodes;
    w.next_draw = word + 5 * nodes;
    w.drawn_node = w.next_draw + capacity_;
    w.log_prob = log_prob;
    w.path_log_prob = log_prob + nodes;
    w.size = size_.data();
    return w;
  }

 private:
  std::int32_t capacity_;
  device_array<std::int32_t> words_;
  device_array<float> log_probs_;
  device_array<tree_size> size_;
};

}  // namespace espalier::cuda
