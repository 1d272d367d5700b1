// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/sampling/exponential.hpp"

namespace espalier::cuda {

namespace detail {

inline constexpr token_id every_tie = INT32_MAX;

}  // namespace detail

//! How the probabilities of a row follow from its logits, each from its own: all that a sampler finds out about a row.
//! A row that is refused gives 0 to every token.
struct row_transform {
  float best = 0;                            //!< the largest logit
  float scale = 0;                           //!< of exponents of 2
  float inverse = 1;                         //!< of the sum of the exponentials that are kept
  float lowest = -INFINITY;                  //!< the smallest logit that top-k leaves
  token_id last_lowest = detail::every_tie;  //!< the last token with that logit that it leaves
  float least = 0;                           //!< the smallest exponential that top-p and min-p leave
  token_id last_least = detail::every_tie;   //!< the last token with that exponential that they leave
  token_id refused_token = 0;                //!< whose logit is bad
  fault::kind refused = fault::kind::none;

  __device__ static row_transform refusing(fault::kind why, token_id token) {
    row_transform transform;
    transform.lowest = INFINITY;
    transform.last_lowest = -1;
    transform.refused = why;
    transform.refused_token = token;
    return transform;
  }

  //! 1 for the largest logit, whatever is cut off.
  __device__ float exponential(float logit) const { return espalier::detail::exp2_of_minus((best - logit) * scale); }

  //! Without branches: loops over a row go on to read while they work this out.
  __device__ float probability(float logit, token_id token) const {
    const float e = exponential(logit);
    const bool is_top = (logit > lowest) | ((logit == lowest) & (token <= last_lowest));
    const bool is_kept = (e > least) | ((e == least) & (token <= last_least));
    return is_top & is_kept ? e * inverse : 0.0F;
  }
};

}  // namespace espalier::cuda
