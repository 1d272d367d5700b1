// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/hybrid.cpp
#pragma once

#include "espalier/kv_store/recurrent_shape.hpp"

namespace espalier {

//! The shape of a Mamba-2 block: heads of `head_dim` channels, each channel with a state of `state` numbers. Heads of a
//! group share B, by which inputs go into states, and C, by which states are read.
//!
//! Source      Dao and Gu, Transformers are SSMs (2024); transformers: BambaMixer
struct mamba_shape {
  int heads = 0;
  int head_dim = 0;
  int groups = 1;
  int state = 0;
  int taps = 0;  //!< tokens that the convolution sees, its own included
  bool convolution_bias = true;
  bool projection_bias = false;
  float least_step = 0.0F;  //!< least_step, greatest_step: limits of the time step, after softplus
  float greatest_step = 0.0F;

  int inner() const { return heads * head_dim; }
  //! Number of channels that are convolved: inputs, B and C.
  int convolved() const { return inner() + 2 * groups * state; }
  //! Number of outputs of the first projection: gates, convolved channels, steps.
  int projected() const { return inner() + convolved() + heads; }
  //! Number of floats that a channel's state takes in memory: a multiple of 16, so whole vectors on any machine.
  int state_stride() const { return (state + 15) / 16 * 16; }

  //! Shape of the states that a store keeps for `layers` such blocks. A row holds the channels before and after the
  //! convolution, and each head's step and decay.
  recurrent_shape kept(int layers) const {
    return {layers, inner() * state_stride(), 2 * convolved() + 2 * heads, taps - 1};
  }
};

//! The weights of a Mamba-2 block, except for its two projections.
struct mamba_weights {
  float* convolution = nullptr;       //!< [taps][convolved], the token's own tap last
  float* convolution_bias = nullptr;  //!< [convolved] or null
  float* step_bias = nullptr;         //!< [heads]
  float* decay = nullptr;             //!< [heads], A: less than 0
  float* skip = nullptr;              //!< [heads], D
  float* norm = nullptr;              //!< [inner]
};

}  // namespace espalier
