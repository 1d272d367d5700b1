// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"
#include "espalier/cuda/model/attention/row_keys.cuh"

namespace espalier::cuda::detail {

inline constexpr int plain_attention_warps = 4;
inline constexpr int plain_attention_max_dim = 256;
inline constexpr std::size_t plain_attention_shared_bytes =
    plain_attention_warps * (plain_attention_max_dim * sizeof(float) + row_keys::block * sizeof(std::int32_t));

//! Attention without tensor cores, for any head dimension up to 256 and any number type: a warp works on one row and
//! head. It always sums by position: block b of 64 keys belongs to split b % n_splits.
//!
//! A lane scores a key, then owns some of the dimensions. What the row does not see is not read, nor what lies before
//! its window.
//!
//! Complexity  a row reads all its keys and values itself
template <class NumberT>
ESPALIER_KERNEL __launch_bounds__(32 * plain_attention_warps) void plain_attention(attention_arguments<NumberT> a) {
  ptx::allow_next();
  ptx::await_previous();
  constexpr int dimensions = plain_attention_max_dim / 32;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32), warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const auto i = static_cast<std::int32_t>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  const std::int32_t row = i / a.n_heads, head = i % a.n_heads;
  if (row >= a.batch.n_rows || a.batch.sequence_of[row] < 0) return;
  const auto split = static_cast<std::int32_t>(blockIdx.y);

  float* const queries = reinterpret_cast<float*>(shared_memory());
  float* const query = queries + warp * plain_attention_max_dim;
  std::int32_t* const rows =
      reinterpret_cast<std::int32_t*>(queries + plain_attention_warps * plain_attention_max_dim) +
      warp * row_keys::block;
  const NumberT* const from = a.queries + static_cast<std::int64_t>(row) * a.query_stride + head * a.head_dim;
  for (std::int32_t d = lane; d < a.head_dim; d += 32)
    query[d] = static_cast<float>(from[d]);
  __syncwarp();

  const row_keys keys(a.batch, row, a.seen_words);
  const NumberT* const first_key = a.kv.data + static_cast<std::int64_t>(head / a.group) * a.head_dim;
  const std::int64_t to_value = static_cast<std::int64_t>(a.kv.page_size) * a.kv.row_size;

  const std::int32_t begin = a.window > 0 && keys.n > a.window ? keys.n - a.window : 0;  // the first key in the window
  const std::int32_t left_out = (begin / row_keys::block - split + a.n_splits - 1) / a.n_splits;
  float most = -INFINITY, total = 0.0F, sum[dimensions] = {};
  for (std::int32_t block = split + (left_out > 0 ? left_out * a.n_splits : 0); block < keys.n_blocks();
       block += a.n_splits) {
    __syncwarp();
    keys.list(a.kv, block, rows);
    for (std::int32_t first = 0; first < row_keys::block && rows[first] >= 0; first += 32) {
      const std::int32_t hidden = begin - (row_keys::block * block + first);  // of these 32 keys, before the window
      const std::int32_t own = lane < hidden ? -1 : rows[first + lane];
      float score = -INFINITY;
      if (own >= 0) {
        const NumberT* const k = first_key + static_cast<std::int64_t>(own) * a.kv.row_size;
        score = 0.0F;
        for (std::int32_t d = 0; d < a.head_dim; ++d)
          score = fmaf(query[d], static_cast<float>(k[d]), score);
        if (a.cap > 0.0F) score = a.cap * tanhf(score * a.cap_scale);
      }
      float more = score;
      for (int step = 16; step > 0; step /= 2)
        more = fmaxf(more, __shfl_xor_sync(0xFFFFFFFFU, more, step));
      more = fmaxf(more, most);
      const float keep = most == -INFINITY ? 0.0F : exp2f((most - more) * a.exponent_scale);
      const float weight = own >= 0 ? exp2f((score - more) * a.exponent_scale) : 0.0F;
      most = more;
      float weights = weight;
      for (int step = 16; step > 0; step /= 2)
        weights += __shfl_xor_sync(0xFFFFFFFFU, weights, step);
      total = fmaf(total, keep, weights);
      for (int part = 0; part < dimensions; ++part)
        sum[part] *= keep;
      for (int j = 0; j < 32; ++j) {
        const std::int32_t at = rows[first + j];
        if (at < 0) break;
        if (j < hidden) continue;
        const float w = __shfl_sync(0xFFFFFFFFU, weight, j);
        const NumberT* const v = first_key + static_cast<std::int64_t>(at) * a.kv.row_size + to_value;
        ESPALIER_UNROLL
        for (int part = 0; part < dimensions; ++part)
          if (const std::int32_t d = lane + 32 * part; d < a.head_dim)
            sum[part] = fmaf(w, static_cast<float>(v[d]), sum[part]);
      }
    }
  }

  const float factor = total == 0.0F ? 0.0F : 1.0F / total;
  const std::int64_t n = static_cast<std::int64_t>(a.batch.n_rows) * a.n_heads;
  if (a.n_splits > 1) {
    if (lane == 0) a.part_scores[split * n + i] = {most, total};
    if (total == 0.0F) return;
  }
  ESPALIER_UNROLL
  for (int part = 0; part < dimensions; ++part) {
    const std::int32_t d = lane + 32 * part;
    if (d >= a.head_dim) continue;
    if (a.n_splits > 1) {
      a.parts[(split * n + i) * a.head_dim + d] = sum[part];
    } else {
      // Rounded as merge_parts does for one part.
      a.out[static_cast<std::int64_t>(i) * a.head_dim + d] = static_cast<NumberT>((sum[part] + 0.0F) * factor);
    }
  }
}

}  // namespace espalier::cuda::detail
