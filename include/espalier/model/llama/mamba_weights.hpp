// SPDX-License-Identifier: BSL-1.0
#pragma once

namespace espalier {

//! What a Mamba-2 block has beside its two projections.
struct mamba_weights {
  float* convolution = nullptr;       //!< [taps][convolved], the token's own tap last
  float* convolution_bias = nullptr;  //!< [convolved] or null
  float* step_bias = nullptr;         //!< [heads]
  float* decay = nullptr;             //!< [heads], A: less than 0
  float* skip = nullptr;              //!< [heads], D
  float* norm = nullptr;              //!< [inner]
};

}  // namespace espalier
