// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstdint>

#include "espalier/core/error.hpp"
#include "espalier/core/option.hpp"
#include "espalier/model/torch/torch_shape.hpp"

namespace espalier {

struct torch_options {
  std::int32_t max_rows = 320;     //!< longest batch of one forward pass: a tree of 256 and what is pending
  std::int32_t max_positions = 0;  //!< longest text, in tokens; 0: as many as the model has

  static constexpr void describe(auto see) {
    see(option{"max_rows", &torch_options::max_rows, "rows of the longest forward pass", 1, 1 << 16});
    see(option{"max_positions", &torch_options::max_positions, "longest text; 0: as long as the model has positions", 0,
               1 << 30});
  }
};

namespace detail {

// The options, with as many positions as the module has at most.
//
// Errors: option_error
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
