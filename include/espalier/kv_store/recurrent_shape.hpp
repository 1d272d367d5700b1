// SPDX-License-Identifier: BSL-1.0
// Tested by tests/kv_store/recurrent.cpp
#pragma once

#include <cstddef>

#include "espalier/core/error.hpp"

namespace espalier {

//! The sizes of a model's recurrent state, which a store must hold beside keys and values.
//!
//! Errors      check: option_error for a number out of range
struct recurrent_shape {
  int layers = 0;      //!< recurrent layers; 0: the model has none
  int state_size = 0;  //!< floats of one layer's state
  //! floats that a layer keeps of each token, from which the state after the token can be computed again
  int row_size = 0;
  //! number of tokens before a state that a convolution still reads: their rows are needed with the state
  int reach = 0;

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
