// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/llama/llama_backend.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <vector>

#include "espalier/config.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/read_ahead.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/model/llama/model_config.hpp"
#include "espalier/model/llama/model_steps.hpp"
#include "espalier/model/llama/rotary_table.hpp"

namespace espalier::cuda::detail {

// Cosines and sines of the rotary embedding for every position, on the device.
struct rotary_table {
  rotary_table(int n_positions, int dims, double theta, const rope_scaling& scaling = {})
      : positions(n_positions),
        cosine(static_cast<std::size_t>(positions) * static_cast<std::size_t>(dims / 2)),
        sine(cosine.size()) {
    if (cosine.size() == 0) return;
    const espalier::detail::rotary_table host(positions, dims, theta, scaling);
    cosine = device_array<float>(std::span(host.cosine(0), cosine.size()));
    sine = device_array<float>(std::span(host.sine(0), sine.size()));
  }

  std::int32_t positions;
  device_array<float> cosine, sine;  // [positions][dims / 2]
};

// The rotary tables of a model. `local` is for the layers with a window, if the model gives these a base of their own;
// `all` is for all other layers.
struct rotary_tables {
  rotary_tables(const model_config& c, int positions)
      : all(positions, c.rotary_dims, c.rope_theta, c.scaling),
        local(c.local_rope_theta > 0.0 ? positions : 0, c.rotary_dims, c.local_rope_theta) {}

  rotary_table all, local;
};

// The arguments of rotate(), which makes the queries, keys and values of attention from the sums of their product: it
// adds biases, normalises each head of query and key if the model does so, and rotates pairs (i, i + rotary_dims / 2)
// of queries and keys by the row's position. Queries stay in place; keys and values go to the row's cache slot.
//
// Shapes: projected [rows][stride], of which the first [n_heads + 2 n_kv_heads][head_dim] are read; bias
// [n_heads + 2 n_kv_heads][head_dim] or null; norms [head_dim] or null; cosine, sine
// [max_positions][rotary_dims / 2]
template <class NumberT>
struct rotate_job {
  NumberT* projected = nullptr;
  const float* bias = nullptr;
  const float* query_norm = nullptr;
  const float* key_norm = nullptr;
  float epsilon = 0;
  const float* cosine = nullptr;
  const float* sine = nullptr;
  std::int32_t n_heads = 0;
  std::int32_t n_kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t stride = 0;
  std::int32_t rotary_dims = 0;
  std::int32_t max_positions = 0;  // a position outside 0 to max_positions - 1 gives NaN
  std::int32_t layer = 0;
  read_ahead next{};  // weights that the grid's thread blocks beyond one for each row only prefetch

  // Returns the job of a step for all heads that a configuration has.
  template <class LayerT>
  static rotate_job of(const model_config& config, const rotary_tables& tables, const LayerT& layer, NumberT* projected,
                       const espalier::detail::model_step& step) {
    const rotary_table& rotary = step.local_rotary ? tables.local : tables.all;
    rotate_job job;
    job.projected = projected;
    job.bias = layer.query_key_value.bias;
    job.query_norm = config.whole_query_key_norm ? nullptr : layer.query_norm;
    job.key_norm = config.whole_query_key_norm ? nullptr : layer.key_norm;
    job.epsilon = config.norm_epsilon;
    job.cosine = rotary.cosine.data();
    job.sine = rotary.sine.data();
    job.n_heads = config.n_heads;
    job.n_kv_heads = config.n_kv_heads;
    job.head_dim = config.head_dim;
    job.stride = config.projected_size();
    job.rotary_dims = step.unrotated ? 0 : config.rotary_dims;
    job.max_positions = rotary.positions;
    job.layer = step.cache_layer;
    return job;
  }
};

inline constexpr int rotate_warps = 4;

// Normalises and rotates one head, and calls store(i, value) for each of its dimensions. Called by a whole warp.
template <class NumberT, class StoreT>
__device__ void rotate_head(const rotate_job<NumberT>& job, const NumberT* x, const float* bias, const float* norm,
                            std::int32_t position, const StoreT& store) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const auto value = [&](std::int32_t i) { return static_cast<float>(x[i]) + (bias != nullptr ? bias[i] : 0.0F); };
  float factor = 1.0F;
  if (norm != nullptr) {
    float squares = 0.0F;
    for (std::int32_t i = lane; i < job.head_dim; i += 32)
      squares += value(i) * value(i);
    for (int other = 16; other > 0; other /= 2)
      squares += __shfl_xor_sync(0xFFFFFFFFU, squares, other);
    factor = 1.0F / sqrtf(squares / static_cast<float>(job.head_dim) + job.epsilon);
  }
  const auto normal = [&](std::int32_t i) { return norm != nullptr ? value(i) * factor * norm[i] : value(i); };
  const std::int32_t half = job.rotary_dims / 2;
  const bool known = position >= 0 && position < job.max_positions;
  const std::int64_t turn = static_cast<std::int64_t>(known ? position : 0) * half;
  for (std::int32_t i = lane; i < half; i += 32) {
    const float a = normal(i), b = normal(i + half);
    const float c = known ? job.cosine[turn + i] : NAN, s = job.sine[turn + i];
    store(i, a * c - b * s);
    store(i + half, b * c + a * s);
  }
  for (std::int32_t i = job.rotary_dims + lane; i < job.head_dim; i += 32)
    store(i, normal(i));
}

// The kernel of rotate(): one warp for each head of a row.
template <class NumberT>
ESPALIER_KERNEL void rotate_rows(rotate_job<NumberT> job, kv_view<NumberT> kv, forward_batch_view batch) {
  ptx::allow_next();
  if (!job.next.ask_beside(batch.n_rows)) return;
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  const auto head = static_cast<std::int32_t>(blockIdx.y * rotate_warps + threadIdx.x / 32);
  const std::int32_t kv_head = head - job.n_heads, value_head = kv_head - job.n_kv_heads;
  if (value_head >= job.n_kv_heads || batch.sequence_of[row] < 0) return;
  const std::int32_t first = head * job.head_dim;
  NumberT* x = job.projected + static_cast<std::int64_t>(row) * job.stride + first;
  const float* bias = job.bias != nullptr ? job.bias + first : nullptr;
  const std::int32_t position = batch.positions[row], slot = batch.slots[row];
  if (kv_head < 0) {
    rotate_head(job, x, bias, job.query_norm, position, [&](std::int32_t i, float v) { x[i] = NumberT(v); });
    return;
  }
  if (slot < 0) return;
  const std::int32_t sequence = batch.sequences[batch.sequence_of[row]].sequence;
  if (value_head < 0) {
    NumberT* key = kv.key(job.layer, sequence, slot) + kv_head * job.head_dim;
    rotate_head(job, x, bias, job.key_norm, position, [&](std::int32_t i, float v) { key[i] = NumberT(v); });
    return;
  }
  NumberT* value = kv.value(job.layer, sequence, slot) + value_head * job.head_dim;
  for (auto i = static_cast<std::int32_t>(threadIdx.x % 32); i < job.head_dim; i += 32)
    value[i] = bias != nullptr ? NumberT(static_cast<float>(x[i]) + bias[i]) : x[i];
}

template <class NumberT>
void rotate(const rotate_job<NumberT>& job, const kv_view<NumberT>& kv, const forward_batch_view& batch,
            cudaStream_t stream) {
  if (batch.n_rows == 0) return;
  const int heads = job.n_heads + 2 * job.n_kv_heads;
  const auto of_heads = static_cast<unsigned>((heads + rotate_warps - 1) / rotate_warps);
  launch("rotate_rows", rotate_rows<NumberT>,
         {.grid = job.next.grid_beside(batch.n_rows, of_heads), .threads = 32 * rotate_warps, .overlaps = true}, stream,
         job, kv, batch);
}

}  // namespace espalier::cuda::detail
