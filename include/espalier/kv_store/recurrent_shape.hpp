// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cstddef>

#include "espalier/core/error.hpp"

namespace espalier {

//! What a model with a recurrent state asks a store to hold beside keys and values.
//!
//! Errors      check: option_error for a number out of range
struct recurrent_shape {
  int layers = 0;      //!< with a state; 0: the model has none
  int state_size = 0;  //!< floats of a layer's state
  int row_size = 0;    //!< floats that a layer keeps of a token, to compute the state after it once more
  int reach = 0;       //!< tokens before a state whose rows are needed beside it: those that a convolution still sees

  friend bool operator==(const recurrent_shape&, const recurrent_shape&) = default;

  void check() const {
    require_option("number of recurrent layers", layers, 0, 1 << 20);
    if (layers == 0) return;
    require_option("recurrent state size", state_size, 1, 1 << 30);
    require_option("recurrent row size", row_size, 1, 1 << 26);
    require_option("recurrent reach", reach, 0, 1 << 10);
  }
};

}  // namespace espalier
