// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/option.hpp"

namespace espalier {

//! The sizes of a PyTorch module's inputs and outputs.
struct torch_shape {
  std::int32_t vocab_size = 0;
  std::int32_t n_layers = 0;
  std::int32_t row_size = 0;  //!< numbers of a cache row: n_kv_heads * head_dim
  std::int32_t max_positions = 0;

  static constexpr void describe(auto see) {
    see(option{"vocab_size", &torch_shape::vocab_size, "tokens of the vocabulary", 1, 1 << 30});
    see(option{"n_layers", &torch_shape::n_layers, "layers with keys and values", 1, 1 << 16});
    see(option{"row_size", &torch_shape::row_size, "numbers of a cache row, all heads of a layer", 1, 1 << 24});
    see(option{"max_positions", &torch_shape::max_positions, "longest text, in tokens", 1, 1 << 30});
  }
};

}  // namespace espalier
