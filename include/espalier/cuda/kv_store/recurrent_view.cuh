// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/kv_store/recurrent.cu
#pragma once

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/kv_store/kv_view.cuh"

namespace espalier::cuda {

//! The recurrent state of every recurrent layer and sequence in the memory of the device, and the rows of the slots
//! after it, from which the states of these slots are computed. A view, which kernels get by value.
//!
//! Each layer keeps two rows of a slot, as the slot's key and value in `rows`. Their memory is used in turn: slot s has
//! the memory of slot s - n_slots.
//!
//! Shapes      rows: recurrent layers alone, each row half of recurrent_shape::row_size; states
//!             [layers][sequences][state_size]; seen [layers][sequences]
struct recurrent_view {
  kv_view<float> rows;
  float* states = nullptr;
  //! how many slots, from the first, each state has seen; 0: the state is zero; 2^30: rows after it are lost
  std::int32_t* seen = nullptr;
  std::int32_t n_sequences = 0;
  std::int32_t state_size = 0;
  std::int32_t n_slots = 0;  //!< slots of a sequence that have a row at the same time

  //! Position of a sequence's state in a layer, counted in states.
  ESPALIER_HOST_DEVICE std::ptrdiff_t at(std::int32_t layer, std::int32_t sequence) const {
    return static_cast<std::ptrdiff_t>(layer) * n_sequences + sequence;
  }
  //! The state: [state_size].
  ESPALIER_HOST_DEVICE float* state(std::int32_t layer, std::int32_t sequence) const {
    return states + at(layer, sequence) * state_size;
  }
};

}  // namespace espalier::cuda
