// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"

namespace espalier::cuda::detail {

inline constexpr int attention_merge_threads = 128;

//! Multiplies the splits' sums of `width` dimensions by the splits' weights, adds them up, multiplies the result by
//! `factor`, and writes it to out if `there` is set. Called by a whole warp.
//!
//! Shapes      parts: these dimensions of the first split's sums, with parts_between numbers from one split to the
//!             next; weight: the weight of split i in lane i, 0 in further lanes
template <int width, class NumberT>
__device__ void merge_dimensions(const float* parts, std::int64_t parts_between, float weight, float factor, bool there,
                                 NumberT* out) {
  struct alignas(width * sizeof(float)) piece {
    float number[width];
  };
  struct alignas(width * sizeof(NumberT)) result {
    NumberT number[width];
  };
  constexpr int at_once = 8;  // loads that are under way together
  piece sum = {};
  for (int first = 0;
       first < 32 && __any_sync(0xFFFFFFFFU, static_cast<int>(threadIdx.x % 32) >= first && weight != 0.0F) != 0;
       first += at_once) {
    float shares[at_once];
    piece pieces[at_once];
    ESPALIER_UNROLL
    for (int i = 0; i < at_once; ++i) {
      shares[i] = __shfl_sync(0xFFFFFFFFU, weight, first + i);
      pieces[i] = {};
      // Parts of splits that have seen nothing are not written, and must not be read.
      if (there && shares[i] != 0.0F) pieces[i] = *reinterpret_cast<const piece*>(parts + (first + i) * parts_between);
    }
    ESPALIER_UNROLL
    for (int i = 0; i < at_once; ++i) {
      ESPALIER_UNROLL
      for (int e = 0; e < width; ++e)
        sum.number[e] = fmaf(shares[i], pieces[i].number[e], sum.number[e]);
    }
  }
  result mean;
  ESPALIER_UNROLL
  for (int e = 0; e < width; ++e)
    mean.number[e] = static_cast<NumberT>(sum.number[e] * factor);
  if (there) *reinterpret_cast<result*>(out) = mean;
}

//! Merges the results of the first n splits for a row and head, in order. Called by a whole warp.
//!
//! Pre         n <= 32
template <class NumberT>
__device__ void merge_parts(const attention_arguments<NumberT>& a, std::int64_t row_and_head, std::int32_t n) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int64_t parts_between = std::int64_t{a.batch.n_rows} * a.n_heads;
  const part_score own = lane < n ? a.part_scores[lane * parts_between + row_and_head] : part_score{-INFINITY, 0.0F};
  float most = own.most;
  for (int step = 16; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFU, most, step));
  // NaN stays NaN. If nothing was seen at all, the difference of two infinities must not become NaN.
  const float weight = own.most == -INFINITY ? 0.0F : exp2f((own.most - most) * a.exponent_scale);
  float total = weight == 0.0F ? 0.0F : weight * own.total;
  for (int step = 16; step > 0; step /= 2)
    total += __shfl_xor_sync(0xFFFFFFFFU, total, step);
  const float factor = mean_factor(a, row_and_head, most, total);

  const std::int64_t between = parts_between * a.head_dim, at = row_and_head * a.head_dim;
  const std::int32_t width = a.head_dim % 4 == 0 ? 4 : 1;
  for (std::int32_t first = 0; first < a.head_dim; first += 32 * width) {
    const std::int32_t d = first + width * lane;
    const bool there = d < a.head_dim;
    const float* const parts = a.parts + at + d;
    if (width == 4) {
      merge_dimensions<4>(parts, between, weight, factor, there, a.out + at + d);
    } else {
      merge_dimensions<1>(parts, between, weight, factor, there, a.out + at + d);
    }
  }
}

//! Merges the results of the splits of the context. One warp works on a row and head; padding rows are left alone.
template <class NumberT>
ESPALIER_KERNEL __launch_bounds__(attention_merge_threads) void merge_attention(attention_arguments<NumberT> a) {
  ptx::await_previous();
  const auto i = static_cast<std::int32_t>((blockIdx.x * blockDim.x + threadIdx.x) / 32);  // number of the row and head
  if (i >= a.batch.n_rows * a.n_heads || a.batch.sequence_of[i / a.n_heads] < 0) return;
  merge_parts(a, i, a.n_splits);
}

}  // namespace espalier::cuda::detail
