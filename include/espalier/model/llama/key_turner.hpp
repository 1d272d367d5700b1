// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

//! Turns keys in the cache of a llama_backend to other positions, for a sink_window_kv over that model: rotary
//! embeddings are turns, so one more turn takes a key from position p to position p - n.
//!
//! Complexity  O(row); another n than before: O(head_dim). No allocation after construction
//! Law         the keys are, within the rounding of one turn, those that the model computes at the other position
class key_turner {
 public:
  explicit key_turner(const model_config& config)
      : head_dim_(config.head_dim),
        dims_(config.rotary_dims),
        theta_(config.rope_theta),
        cosine_(static_cast<std::size_t>(dims_ / 2), 1.0F),
        sine_(cosine_.size(), 0.0F) {}

  //! Shapes      key [n_kv_heads * head_dim], of any layer
  void operator()(int, std::span<float> key, int n) {
    if (n != n_) set(n);
    const auto head = static_cast<std::size_t>(head_dim_);
    for (std::size_t first = 0; first + head <= key.size(); first += head) {
      float* x = key.data() + first;
      detail::rotate_head(x, head_dim_, dims_, cosine_.data(), sine_.data(), 1.0F, x);
    }
  }

 private:
  // As rotary_table at position -n.
  void set(int n) {
    n_ = n;
    for (std::size_t i = 0; i < cosine_.size(); ++i) {
      const double angle = -n * std::pow(theta_, -2.0 * static_cast<double>(i) / dims_);
      cosine_[i] = static_cast<float>(std::cos(angle));
      sine_[i] = static_cast<float>(std::sin(angle));
    }
  }

  int head_dim_, dims_;
  double theta_;
  int n_ = 0;
  std::vector<float> cosine_, sine_;  // [dims / 2]
};

}  // namespace espalier
