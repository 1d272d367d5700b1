// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cmath>
#include <cstddef>
#include <span>
#include <vector>

#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/model_config.hpp"

namespace espalier {

//! A function object that turns keys in the cache of a llama_backend to other positions, for a sink_window_kv over that
//! model. Rotary embeddings are turns, so one more turn takes a key from position p to position p - n.
//!
//! Complexity  O(n_kv_heads * head_dim); O(rotary_dims) sines and cosines more if n is not the n of the last call. No
//!             allocation after construction
//! Law         a turned key is the key that the model computes at the other position, except for the rounding of a turn
class key_turner {
 public:
  //! `positions` is option max_positions of the llama_backend.
  //!
  //! Errors      option_error as llama_backend for that option
  explicit key_turner(const model_config& config, int positions = 0)
      : config_(config),
        positions_(config.positions(positions)),
        all_(config.rotary_dims),
        local_(config.local_rope_theta > 0.0 ? config.rotary_dims : 0) {}

  //! Turns a key of a layer back by n positions.
  //!
  //! Shapes      key [n_kv_heads * head_dim]
  void operator()(int layer, std::span<float> key, int n) {
    if (config_.is_unrotated(layer)) return;
    if (n != n_) set(n);
    const turn& by = config_.local_rope_theta > 0.0 && config_.is_windowed(layer) ? local_ : all_;
    const auto head = static_cast<std::size_t>(config_.head_dim);
    for (std::size_t first = 0; first + head <= key.size(); first += head) {
      float* x = key.data() + first;
      detail::rotate_head(x, config_.head_dim, config_.rotary_dims, by.cosine.data(), by.sine.data(), 1.0F, x);
    }
  }

 private:
  struct turn {
    explicit turn(int dims) : cosine(static_cast<std::size_t>(dims / 2), 1.0F), sine(cosine.size(), 0.0F) {}

    // Sets the cosines and sines for a rotation by -n positions. They are not multiplied by the amplitude of a
    // rotary_table, since the keys in the cache already are.
    void set(int n, int dims, double theta, const rope_scaling& scaling, int positions) {
      for (std::size_t i = 0; i < cosine.size(); ++i) {
        const double angle = -n * scaling.frequency(theta, dims, static_cast<int>(i), positions);
        cosine[i] = static_cast<float>(std::cos(angle));
        sine[i] = static_cast<float>(std::sin(angle));
      }
    }

    std::vector<float> cosine, sine;  // [dims / 2]
  };

  void set(int n) {
    n_ = n;
    all_.set(n, config_.rotary_dims, config_.rope_theta, config_.scaling, positions_);
    local_.set(n, config_.rotary_dims, config_.local_rope_theta, {}, positions_);
  }

  model_config config_;
  int positions_;
  int n_ = 0;
  turn all_, local_;
};

}  // namespace espalier
