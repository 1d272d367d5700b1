// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"

namespace espalier::cuda::detail {

inline constexpr int plain_attention_warps = 4;
inline constexpr int plain_attention_max_dim = 256;
inline constexpr std::size_t plain_attention_shared_bytes =
    plain_attention_warps * plain_attention_max_dim * sizeof(float);

//! Attention of one row and head a warp, without tensor cores: any head dimension up to 256, any number type.
//!
//! A unit of work is 32 slots: 32 of the prefix, or a word of the row's mask. A lane scores a slot, then owns some of
//! the dimensions. What the row does not see is not read.
//!
//! Complexity  a row reads all its keys and values itself
template <class NumberT>
ESPALIER_KERNEL __launch_bounds__(32 * plain_attention_warps) void plain_attention(attention_arguments<NumberT> a) {
  constexpr int parts = plain_attention_max_dim / 32;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const auto i = static_cast<std::int32_t>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  const std::int32_t row = i / a.n_heads, head = i % a.n_heads;
  if (row >= a.batch.n_rows || a.batch.sequence_of[row] < 0) return;
  const auto split = static_cast<std::int32_t>(blockIdx.y);

  float* const query = reinterpret_cast<float*>(shared_memory()) + threadIdx.x / 32 * plain_attention_max_dim;
  const NumberT* const from = a.queries + static_cast<std::int64_t>(row) * a.query_stride + head * a.head_dim;
  for (std::int32_t d = lane; d < a.head_dim; d += 32)
    query[d] = static_cast<float>(from[d]);
  __syncwarp();

  const batch_sequence s = a.batch.sequences[a.batch.sequence_of[row]];
  const std::uint32_t* const mask = a.batch.mask + s.mask_begin + (row - s.row_begin) * s.mask_words;
  const std::int32_t prefix_units = (s.prefix + 31) / 32, n_units = prefix_units + s.mask_words;
  const std::int64_t kv_head = static_cast<std::int64_t>(head / a.group) * a.head_dim;
  const std::int64_t to_value = static_cast<std::int64_t>(a.kv.page_size) * a.kv.row_size;

  float most = -INFINITY, total = 0.0F, sum[parts] = {};
  const std::int32_t end = split_begin(n_units, split + 1, a.n_splits);
  for (std::int32_t unit = split_begin(n_units, split, a.n_splits); unit < end; ++unit) {
    std::uint32_t seen = ~0U;
    std::int32_t first = 32 * unit;
    if (unit >= prefix_units) {
      seen = mask[unit - prefix_units];
      first = s.prefix + 32 * (unit - prefix_units);
    } else if (s.prefix - first < 32) {
      seen = (1U << (s.prefix - first)) - 1U;
    }
    if (seen == 0) continue;

    float score = -INFINITY;
    unsigned long long key = 0;
    if ((seen >> lane & 1U) != 0) {
      const NumberT* const k = a.kv.key(0, s.sequence, first + lane) + kv_head;
      key = reinterpret_cast<unsigned long long>(k);
      score = 0.0F;
      for (std::int32_t d = 0; d < a.head_dim; ++d)
        score = fmaf(query[d], static_cast<float>(k[d]), score);
      score *= a.exponent_scale;
    }
    float more = score;
    for (int step = 16; step > 0; step /= 2)
      more = fmaxf(more, __shfl_xor_sync(0xFFFFFFFFU, more, step));
    more = fmaxf(more, most);
    const float keep = most == -INFINITY ? 0.0F : exp2f(most - more);
    const float weight = (seen >> lane & 1U) != 0 ? exp2f(score - more) : 0.0F;
    most = more;
    float weights = weight;
    for (int step = 16; step > 0; step /= 2)
      weights += __shfl_xor_sync(0xFFFFFFFFU, weights, step);
    total = fmaf(total, keep, weights);
    for (int part = 0; part < parts; ++part)
      sum[part] *= keep;
    for (int j = 0; j < 32; ++j) {
      if ((seen >> j & 1U) == 0) continue;
      const float w = __shfl_sync(0xFFFFFFFFU, weight, j);
      const NumberT* const v = reinterpret_cast<const NumberT*>(__shfl_sync(0xFFFFFFFFU, key, j)) + to_value;
      ESPALIER_UNROLL
      for (int part = 0; part < parts; ++part)
        if (const std::int32_t d = lane + 32 * part; d < a.head_dim)
          sum[part] = fmaf(w, static_cast<float>(v[d]), sum[part]);
    }
  }

  const float factor = total == 0.0F ? 0.0F : 1.0F / total;
  const std::int64_t n = static_cast<std::int64_t>(a.batch.n_rows) * a.n_heads;
  if (a.n_splits > 1) {
    if (lane == 0) a.part_weights[split * n + i] = total == 0.0F ? -INFINITY : most + log2f(total);
    if (total == 0.0F) return;
  }
  ESPALIER_UNROLL
  for (int part = 0; part < parts; ++part) {
    const std::int32_t d = lane + 32 * part;
    if (d >= a.head_dim) continue;
    if (a.n_splits > 1) {
      a.parts[(split * n + i) * a.head_dim + d] = sum[part] * factor;
    } else {
      a.out[static_cast<std::int64_t>(i) * a.head_dim + d] = static_cast<NumberT>(sum[part] * factor);
    }
  }
}

}  // namespace espalier::cuda::detail
