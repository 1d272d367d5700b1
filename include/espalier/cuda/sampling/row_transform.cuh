// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/sampling/sampler.cu
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "espalier/core/token.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/sampling/exponential.hpp"

namespace espalier::cuda {

namespace detail {

// The value of last_lowest and last_least for a cut that keeps every token that lies exactly at it.
inline constexpr token_id every_tie = INT32_MAX;

}  // namespace detail

//! Everything that a sampler finds out about a row: with it the probability of a token follows from its logit alone.
//! A row that was refused gives 0 to every token.
struct row_transform {
  float best = 0;                            //!< the largest logit
  float scale = 0;                           //!< factor of the differences to `best`, for powers of 2
  float inverse = 1;                         //!< 1 / sum of the exponentials that are kept
  float lowest = -INFINITY;                  //!< the smallest logit that top-k keeps
  token_id last_lowest = detail::every_tie;  //!< the last token with that logit that top-k keeps
  float least = 0;                           //!< the smallest exponential that top-p and min-p keep
  token_id last_least = detail::every_tie;   //!< the last token with that exponential that they keep
  token_id refused_token = 0;                //!< the token whose logit is bad, if the row was refused
  fault::kind refused = fault::kind::none;

  __device__ static row_transform refusing(fault::kind why, token_id token) {
    row_transform transform;
    transform.lowest = INFINITY;
    transform.last_lowest = -1;
    transform.refused = why;
    transform.refused_token = token;
    return transform;
  }

  //! Returns the exponential of a logit relative to the largest one, which gives 1; top-k, top-p and min-p are not
  //! applied.
  __device__ float exponential(float logit) const { return espalier::detail::exp2_of_minus((best - logit) * scale); }

  //! Returns the probability of a token with this logit. The code has no branches, so that loops over a row can load
  //! the next numbers meanwhile.
  __device__ float probability(float logit, token_id token) const {
    const float e = exponential(logit);
    const bool is_top = (logit > lowest) | ((logit == lowest) & (token <= last_lowest));
    const bool is_kept = (e > least) | ((e == least) & (token <= last_least));
    return is_top & is_kept ? e * inverse : 0.0F;
  }
};

}  // namespace espalier::cuda
