// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"

namespace espalier::cuda::detail {

//! What the kernels of attention are told, by value.
//!
//! Shapes      queries [n_rows] at query_stride; out [n_rows][n_heads][head_dim]; with more than one split, of each
//!             one: parts [n_splits][n_rows][n_heads][head_dim] its weighted mean of values, part_weights
//!             [n_splits][n_rows][n_heads] the logarithm, base 2, of the sum of its weights: -inf for nothing seen,
//!             whose part is not written
template <class NumberT>
struct attention_arguments {
  const NumberT* queries;
  kv_view<NumberT> kv;  // data is that of the layer
  forward_batch_view batch;
  NumberT* out;
  float* parts;
  float* part_weights;
  float exponent_scale;  // scores times this are exponents of 2
  std::int32_t query_stride;
  std::int32_t n_heads;
  std::int32_t group;  // query heads that share keys and values
  std::int32_t head_dim;
  std::int32_t n_splits;
  std::int32_t n_stages;    // blocks of keys and values in shared memory: 1 or 2
  std::int32_t seen_words;  // words of a mask that may bear bits, even
};

//! Columns that masks may show: slots from a prefix's end on.
inline constexpr std::int32_t max_mask_columns = 32768;

//! The first unit of work of part `split`. In kernels. Pre: n_units < 2^26.
__device__ inline std::int32_t split_begin(std::int32_t n_units, std::int32_t split, std::int32_t n_splits) {
  return n_units * split / n_splits;
}

}  // namespace espalier::cuda::detail
