// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/hybrid.cpp
#pragma once

#include "espalier/config.hpp"
#include "espalier/kv_store/recurrent_shape.hpp"

namespace espalier {

//! The recurrence of a recurrent layer. A head's state is a matrix. A token multiplies it by the token's decay, adds
//! the outer product of a change and B, and reads its output from it: state * C.
enum class recurrence_kind {
  mamba2,      //!< the change is step * x
  gated_delta  //!< the change is step * (x - state * B): with a step of 1, state * B becomes x. B and C are scaled to
               //!< length 1, and C is divided by the root of its size
};

//! The shape of the block that a recurrent layer has in the place of attention: heads of `head_dim` channels, each
//! channel with a state of `state` numbers. Heads of a group share B, by which inputs x go into states, and C, by which
//! states are read. A gated delta network calls x values, B keys, and C queries.
//!
//! Source      Dao and Gu, Transformers are SSMs (2024); transformers: BambaMixer. Yang, Kautz and Hatamizadeh, Gated
//!             delta networks (2024); transformers: Qwen3NextGatedDeltaNet
struct recurrent_block_shape {
  recurrence_kind kind = recurrence_kind::mamba2;
  int heads = 0;
  int head_dim = 0;
  int groups = 1;
  int state = 0;
  int taps = 0;              //!< tokens that the convolution sees, its own included
  bool tiled_heads = false;  //!< head h is of group h % groups; false: of group h / (heads / groups)
  bool convolution_bias = true;
  bool projection_bias = false;
  float least_step = 0.0F;  //!< least_step, greatest_step: limits of Mamba-2's time step, after softplus
  float greatest_step = 0.0F;

  ESPALIER_HOST_DEVICE bool is_delta() const { return kind == recurrence_kind::gated_delta; }
  ESPALIER_HOST_DEVICE int inner() const { return heads * head_dim; }
  //! Number of channels that are convolved: inputs, B and C.
  ESPALIER_HOST_DEVICE int convolved() const { return inner() + 2 * groups * state; }
  //! Number of outputs of the first projection: gates, convolved channels, the heads' time steps and, of a delta
  //! network, the numbers whose sigmoids are its steps.
  ESPALIER_HOST_DEVICE int projected() const { return inner() + convolved() + (is_delta() ? 2 : 1) * heads; }
  ESPALIER_HOST_DEVICE int group_of(int head) const { return tiled_heads ? head % groups : head / (heads / groups); }
  //! Number of channels that are normalised together, and the number of scales of that norm.
  ESPALIER_HOST_DEVICE int normed_together() const { return is_delta() ? head_dim : inner() / groups; }
  ESPALIER_HOST_DEVICE int norm_size() const { return is_delta() ? head_dim : inner(); }
  //! Number of floats that a channel's state takes in memory: a multiple of 16, so whole vectors on any machine.
  ESPALIER_HOST_DEVICE int state_stride() const { return (state + 15) / 16 * 16; }

  //! Shape of the states that a store keeps for `layers` such blocks. A row holds the channels before and after the
  //! convolution, and each head's step and decay.
  recurrent_shape kept(int layers) const {
    return {layers, inner() * state_stride(), 2 * convolved() + 2 * heads, taps - 1};
  }
};

//! The weights of a recurrent layer's block, except for its two projections.
struct recurrent_block_weights {
  float* convolution = nullptr;       //!< [taps][convolved], the token's own tap last
  float* convolution_bias = nullptr;  //!< [convolved] or null
  float* step_bias = nullptr;         //!< [heads]
  float* decay = nullptr;             //!< [heads], A: less than 0
  float* skip = nullptr;              //!< [heads], D; null in a delta network
  float* norm = nullptr;              //!< [norm_size]
};

}  // namespace espalier
