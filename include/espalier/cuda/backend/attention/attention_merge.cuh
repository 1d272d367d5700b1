// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/backend/attention/attention_arguments.cuh"

namespace espalier::cuda::detail {

inline constexpr int attention_merge_threads = 128;

//! Merges what the splits of the context have found: their means, weighted by the sums of their weights, in the order of the splits.
//! One warp a row and head; padding rows are left alone.
template <class NumberT>
ESPALIER_KERNEL __launch_bounds__(attention_merge_threads) void merge_attention(attention_arguments<NumberT> a) {
  const std::int32_t lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int32_t n = a.batch.n_rows * a.n_heads;
  const auto i = static_cast<std::int32_t>((blockIdx.x * blockDim.x + threadIdx.x) / 32);  // row and head
  if (i >= n || a.batch.sequence_of[i / a.n_heads] < 0) return;

  const float own = lane < a.n_splits ? a.part_weights[static_cast<std::int64_t>(lane) * n + i] : -INFINITY;
  float most = own;
  for (int step = 16; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFU, most, step));
  // Where no part has seen anything, or one is not a number, the difference must not become so, or must stay so.
  const float weight = own == -INFINITY ? 0.0F : exp2f(own - most);
  float total = weight;
  for (int step = 16; step > 0; step /= 2)
    total += __shfl_xor_sync(0xFFFFFFFFU, total, step);
  const float factor = total == 0.0F ? 0.0F : 1.0F / total;

  const std::int64_t from_split_to_split = static_cast<std::int64_t>(n) * a.head_dim;
  const std::int64_t at = static_cast<std::int64_t>(i) * a.head_dim;
  for (std::int32_t first = 0; first < a.head_dim; first += 32) {
    const std::int32_t d = first + lane;
    float sum = 0.0F;
    for (std::int32_t split = 0; split < a.n_splits; ++split) {
      const float share = __shfl_sync(0xFFFFFFFFU, weight, split);
      if (share == 0.0F || d >= a.head_dim) continue;  // parts that have seen nothing are not there
      sum = fmaf(share, a.parts[split * from_split_to_split + at + d], sum);
    }
    if (d < a.head_dim) a.out[at + d] = static_cast<NumberT>(sum * factor);
  }
}

}  // namespace espalier::cuda::detail
