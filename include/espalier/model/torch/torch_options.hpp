// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/torch/torch_backend.cpp
#pragma once

#include <cstdint>
#include <vector>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"

namespace espalier {

//! The sizes of a PyTorch module's inputs and outputs.
struct torch_shape {
  std::int32_t vocab_size = 0;
  std::int32_t n_layers = 0;
  std::int32_t row_size = 0;  //!< size of one layer's keys of a token, and of its values: n_kv_heads * head_dim numbers
  std::int32_t max_positions = 0;
  std::vector<std::int32_t> hidden_layers{};  //!< layers, from 0, whose output the module gives, too

  static constexpr void describe(auto see) {
    see(option{"vocab_size", &torch_shape::vocab_size, "tokens of the vocabulary", 1, 1 << 30});
    see(option{"n_layers", &torch_shape::n_layers, "layers with keys and values", 1, 1 << 16});
    see(option{"row_size", &torch_shape::row_size, "numbers of a cache row, all heads of a layer", 1, 1 << 24});
    see(option{"max_positions", &torch_shape::max_positions, "longest text, in tokens", 1, 1 << 30});
  }
};

struct torch_options {
  std::int32_t max_rows = 320;     //!< most rows of a forward pass; 320 are enough for a tree of 256 and pending tokens
  std::int32_t max_positions = 0;  //!< length of the longest text, in tokens; 0: the module's

  static constexpr void describe(auto see) {
    see(option{"max_rows", &torch_options::max_rows, "rows of the longest forward pass", 1, 1 << 16});
    see(option{"max_positions", &torch_options::max_positions, "longest text; 0: as long as the model has positions", 0,
               1 << 30});
  }
};

namespace detail {

// Returns the options, with max_positions set to the module's if it is 0.
//
// Errors      option_error for options out of range, or for more positions than the module has
inline torch_options limited(torch_options options, const torch_shape& shape) {
  require_options(options);
  if (options.max_positions > shape.max_positions) {
    raise<option_error>("max_positions is ", options.max_positions, ", but the module of PyTorch has ",
                        shape.max_positions, " positions.");
  }
  if (options.max_positions == 0) options.max_positions = shape.max_positions;
  return options;
}

}  // namespace detail

}  // namespace espalier
