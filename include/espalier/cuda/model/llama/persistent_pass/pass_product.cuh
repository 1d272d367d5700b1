// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/model/llama/activate.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/cuda/model/llama/persistent_pass/pass_job.cuh"

namespace espalier::cuda::detail {

// Rows and weights lie in shared memory in runs of eight numbers, 16 bytes, in the order in which the lanes of a warp
// read them for the tensor cores: of each chunk of 32 inputs, lane i reads run i % 4 of row i / 4, or of output i / 4
// of a unit. So the inputs that one instruction multiplies are not neighbours. This does not matter, since rows and
// weights have their inputs in the same order.

// Starts to copy a tile of weights, with zeros after the last input. Called by all threads of the block.
template <class NumberT>
__device__ void fetch_weights(const pass_product& product, const NumberT* matrix, std::int32_t tile,
                              unsigned char* to) {
  if (tile >= product.n_tiles) return;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int32_t n_chunks = product.n_chunks(), n = product.units_of(tile) * n_chunks;
  const std::int32_t column = lane / 4 < 4 ? lane / 4 : product.distance + lane / 4 - 4;
  for (auto i = static_cast<std::int32_t>(threadIdx.x / 32); i < n; i += pass_warps) {
    const std::int32_t unit = i / n_chunks, input = (i - unit * n_chunks) * pass_chunk + lane % 4 * 8;
    const std::int64_t output = product.first_output(tile * product.tile_units + unit) + column;
    const bool there = input < product.inputs;
    ptx::copy_async_16(ptx::address_of(to) + static_cast<std::uint32_t>((i * 32 + lane) * 16),
                       matrix + output * product.inputs + (there ? input : 0), there);
  }
}

// Starts to copy a norm's scale. Called by all threads of the block.
inline __device__ void fetch_scale(const float* scale, std::int32_t hidden, float* to) {
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x) * 4; i < hidden; i += pass_threads * 4)
    ptx::copy_async_16(ptx::address_of(to + i), scale + i, true);
}

// Returns the position of run `run` of row `row` in a tile of rows, counted in pieces of 16 bytes.
__device__ inline std::int32_t place_of_run(std::int32_t row, std::int32_t run) {
  return (run / 4 * pass_tile_rows + row) * 4 + run % 4;
}

// A SourceT of multiply_rows: starts to copy a row into a tile as it is. Called by a whole warp.
template <class NumberT>
struct plain_rows {
  const NumberT* from;
  std::int32_t width;

  __device__ void operator()(uint4* to, std::int32_t row) const {
    const NumberT* const x = from + static_cast<std::int64_t>(row) * width;
    const auto in_tile = static_cast<std::int32_t>(threadIdx.x / 32);
    const std::int32_t runs = (width + pass_chunk - 1) / pass_chunk * 4;
    for (auto run = static_cast<std::int32_t>(threadIdx.x % 32); run < runs; run += 32) {
      const bool there = 8 * run < width;
      ptx::copy_async_16(ptx::address_of(to + place_of_run(in_tile, run)), x + (there ? 8 * run : 0), there);
    }
  }
};

// A SourceT of multiply_rows: writes the RMSNorm of a row of floats into a tile. LoadT gives eight numbers of the row
// at a time. Called by a whole warp.
template <class NumberT, class LoadT>
struct normed_rows {
  LoadT load;
  const float* scale;  // in shared memory
  std::int32_t width;
  float epsilon;

  __device__ void operator()(uint4* to, std::int32_t row) const {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    const auto in_tile = static_cast<std::int32_t>(threadIdx.x / 32);
    float squares = 0.0F;
    for (std::int32_t i = 8 * lane; i < width; i += 256) {
      const auto x = load(row, i);
      for (int k = 0; k < 8; ++k)
        squares += x.at[k] * x.at[k];
    }
    for (int other = 16; other > 0; other /= 2)
      squares += __shfl_xor_sync(0xFFFFFFFFU, squares, other);
    const float factor = 1.0F / sqrtf(squares / static_cast<float>(width) + epsilon);
    const std::int32_t runs = (width + pass_chunk - 1) / pass_chunk * 4;
    for (std::int32_t run = lane; run < runs; run += 32) {
      number_run<NumberT, 8> out{};
      if (8 * run < width) {
        const auto x = load(row, 8 * run);
        for (int k = 0; k < 8; ++k)
          out.at[k] = NumberT(x.at[k] * factor * scale[8 * run + k]);
      }
      store_run<8>(reinterpret_cast<NumberT*>(to + place_of_run(in_tile, run)), out);
    }
  }
};

__device__ inline number_run<float, 8> load_eight(const float* from) {
  const auto low = load_run<4>(from), high = load_run<4>(from + 4);
  return {{low.at[0], low.at[1], low.at[2], low.at[3], high.at[0], high.at[1], high.at[2], high.at[3]}};
}

struct stream_load {
  const float* stream;
  std::int32_t width;

  __device__ number_run<float, 8> operator()(std::int32_t row, std::int32_t i) const {
    return load_eight(stream + static_cast<std::int64_t>(row) * width + i);
  }
};

// A LoadT of normed_rows: gives eight numbers of the embedding of a row's token, and writes them to `stream` if that is
// not null. A token outside the vocabulary gives NaN.
template <class NumberT>
struct embedding_load {
  const token_id* tokens;
  const NumberT* table;
  std::int32_t vocab;
  std::int32_t width;
  float* stream;  // null: another block writes it

  __device__ number_run<float, 8> operator()(std::int32_t row, std::int32_t i) const {
    const token_id token = tokens[row];
    const bool known = token >= 0 && token < vocab;
    const auto run = load_run<8>(table + static_cast<std::int64_t>(known ? token : 0) * width + i);
    number_run<float, 8> out;
    for (int k = 0; k < 8; ++k)
      out.at[k] = known ? static_cast<float>(run.at[k]) : NAN;
    if (stream != nullptr) {
      float* const to = stream + static_cast<std::int64_t>(row) * width + i;
      store_run<4>(to, number_run<float, 4>{{out.at[0], out.at[1], out.at[2], out.at[3]}});
      store_run<4>(to + 4, number_run<float, 4>{{out.at[4], out.at[5], out.at[6], out.at[7]}});
    }
    return out;
  }
};

// Multiplies a tile of rows by a tile of weights, and leaves in `sums` one sum for each part of the inputs: part p is
// chunks p, p + pass_parts, .... Warp w sums part w % pass_parts; the warps of a part take the units in turn.
template <class NumberT>
__device__ void multiply_tile(const uint4* x, const uint4* weights, float* sums, std::int32_t n_units,
                              std::int32_t n_chunks) {
  constexpr int teams = pass_warps / pass_parts, most = pass_max_units / teams;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32), warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const std::int32_t part = warp % pass_parts, first = warp / pass_parts;
  if (first >= n_units) return;
  float sum[most][4] = {};
  for (std::int32_t chunk = part; chunk < n_chunks; chunk += pass_parts) {
    const uint4 low = x[chunk * 64 + lane], high = x[chunk * 64 + 32 + lane];
    const std::uint32_t left[4] = {low.x, high.x, low.y, high.y}, right[4] = {low.z, high.z, low.w, high.w};
    ESPALIER_UNROLL
    for (int k = 0; k < most; ++k) {
      const std::int32_t unit = first + k * teams;
      if (unit >= n_units) continue;
      const uint4 w = weights[(unit * n_chunks + chunk) * 32 + lane];
      ptx::multiply_add<NumberT>(sum[k], left, w.x, w.y);
      ptx::multiply_add<NumberT>(sum[k], right, w.z, w.w);
    }
  }
  const std::int32_t stride = 8 * (n_units | 1);
  float* const to = sums + (part * pass_tile_rows + lane / 4) * stride + lane % 4 * 2;
  ESPALIER_UNROLL
  for (int k = 0; k < most; ++k) {
    const std::int32_t unit = first + k * teams;
    if (unit >= n_units) continue;
    store_run<2>(to + 8 * unit, number_run<float, 2>{{sum[k][0], sum[k][1]}});
    store_run<2>(to + 8 * stride + 8 * unit, number_run<float, 2>{{sum[k][2], sum[k][3]}});
  }
}

// Returns how many bytes of pass_memory::work a product needs.
inline std::size_t product_work_bytes(std::int32_t n_chunks, std::int32_t tile_units) {
  const auto stride = static_cast<std::size_t>(8 * (tile_units | 1));
  return static_cast<std::size_t>(n_chunks) * pass_tile_rows * 64 +
         pass_parts * pass_tile_rows * stride * sizeof(float);
}

// Computes the block's share of a product of n_rows rows. fetch_weights() must have been called for the block's first
// tile of weights. RowT gives the row of the batch that belongs to a row of the product, or -1. SourceT brings that row
// of the batch into the tile. TargetT::prepare() reads what TargetT::store() needs besides the sums, before the sums
// are there; store() gets sums i and i + 4 of a unit.
//
// A sum is made of the sums of four parts of the inputs, each of which is added up chunk by chunk: no row's bits depend
// on other rows.
template <class NumberT, class RowT, class SourceT, class TargetT>
__device__ void multiply_rows(const pass_product& product, const pass_memory& memory, const NumberT* matrix,
                              std::int32_t n_rows, const RowT& row_of, const SourceT& source, const TargetT& target) {
  const auto block = static_cast<std::int32_t>(blockIdx.x);
  const std::int32_t first_group = block / product.tile_blocks;
  if (first_group >= product.group_blocks) return;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32), warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const std::int32_t n_groups = (n_rows + pass_tile_rows - 1) / pass_tile_rows, n_chunks = product.n_chunks();
  auto* const x = reinterpret_cast<uint4*>(memory.work);
  auto* const sums = reinterpret_cast<float*>(x + n_chunks * pass_tile_rows * 4);
  bool has_padding = false;
  for (std::int32_t tile = block % product.tile_blocks; tile < product.n_tiles; tile += product.tile_blocks) {
    const std::int32_t n_units = product.units_of(tile), first_unit = tile * product.tile_units;
    const std::int32_t stride = 8 * (n_units | 1);
    for (std::int32_t group = first_group; group < n_groups; group += product.group_blocks) {
      const std::int32_t first = group * pass_tile_rows, any = first + lane % pass_tile_rows;
      const bool is_last = group + product.group_blocks >= n_groups;
      // All warps get the same answer.
      const bool is_there = __any_sync(0xFFFFFFFFU, any < n_rows && row_of(any) >= 0) != 0;
      const std::int32_t row = is_there && first + warp < n_rows ? row_of(first + warp) : -1;
      typename TargetT::ready_type ready{};
      if (is_there) {
        if (row >= 0) source(x, row);
        if (row >= 0 && lane / 4 < n_units) ready = target.prepare(row, first_unit + lane / 4, lane % 4);
        ptx::copy_async_commit();
        ptx::copy_async_wait<0>();
        __syncthreads();
        multiply_tile<NumberT>(x, reinterpret_cast<const uint4*>(memory.weights), sums, n_units, n_chunks);
        __syncthreads();
      }
      has_padding = has_padding || !is_there;
      if (is_last) fetch_weights(product, matrix, tile + product.tile_blocks, memory.weights);
      if (row < 0) continue;
      for (std::int32_t unit = lane / 4; unit < n_units; unit += 8) {
        if (unit >= 8) ready = target.prepare(row, first_unit + unit, lane % 4);
        float sum[2] = {};
        for (int part = 0; part < pass_parts; ++part) {
          const float* const of = sums + (part * pass_tile_rows + warp) * stride + 8 * unit + lane % 4;
          sum[0] += of[0], sum[1] += of[4];
        }
        target.store(ready, first + warp, row, first_unit + unit, lane % 4, sum);
      }
    }
  }
  // The weights of a tile whose rows are padding may still be on their way. All warps' copies must have ended before
  // any warp copies the next product's weights to the same place.
  if (has_padding) {
    ptx::copy_async_commit();
    ptx::copy_async_wait<0>();
    __syncthreads();
  }
}

// A TargetT of multiply_rows: rotates the pairs of queries and keys by the row's position, and writes queries to
// `queries`, keys and values to the cache.
template <class NumberT, int dim>
struct head_target {
  struct ready_type {
    float cosine, sine;
  };

  const pass_row* rows;
  const float* cosine;
  const float* sine;
  std::int32_t max_positions;
  std::int32_t n_heads;
  std::int32_t n_kv_heads;
  NumberT* queries;
  std::int32_t query_stride;
  NumberT* keys;  // the layer's keys
  std::int64_t to_values;
  std::int32_t cache_stride;

  __device__ ready_type prepare(std::int32_t row, std::int32_t unit, std::int32_t i) const {
    if (unit / (dim / 8) >= n_heads + n_kv_heads) return {1.0F, 0.0F};
    const std::int32_t position = rows[row].position;
    if (position < 0 || position >= max_positions) return {NAN, NAN};
    const std::int64_t at = static_cast<std::int64_t>(position) * (dim / 2) + unit % (dim / 8) * 4 + i;
    return {cosine[at], sine[at]};
  }

  __device__ void store(const ready_type& by, std::int32_t, std::int32_t row, std::int32_t unit, std::int32_t i,
                        const float (&sum)[2]) const {
    const std::int32_t head = unit / (dim / 8), kv_head = head - n_heads, value_head = kv_head - n_kv_heads;
    const std::int32_t place = unit % (dim / 8) * 4 + i;
    const NumberT a(value_head < 0 ? sum[0] * by.cosine - sum[1] * by.sine : sum[0]);
    const NumberT b(value_head < 0 ? sum[1] * by.cosine + sum[0] * by.sine : sum[1]);
    NumberT* to = queries + static_cast<std::int64_t>(row) * query_stride + head * dim;
    if (kv_head >= 0) {
      const std::int32_t cache_row = rows[row].cache_row;
      if (cache_row < 0) return;
      to = keys + static_cast<std::int64_t>(cache_row) * cache_stride;
      to += value_head < 0 ? kv_head * dim : to_values + value_head * dim;
    }
    to[place] = a;
    to[place + dim / 2] = b;
  }
};

// A TargetT of multiply_rows: adds the sums to the stream, and copies the result to `keep` if that is not null.
struct stream_target {
  struct ready_type {
    float at[2];
  };

  float* stream;
  float* keep;
  std::int32_t width;

  __device__ ready_type prepare(std::int32_t row, std::int32_t unit, std::int32_t i) const {
    const float* const from = stream + static_cast<std::int64_t>(row) * width + 8 * unit + i;
    return {{from[0], from[4]}};
  }

  __device__ void store(const ready_type& old, std::int32_t, std::int32_t row, std::int32_t unit, std::int32_t i,
                        const float (&sum)[2]) const {
    const std::int64_t at = static_cast<std::int64_t>(row) * width + 8 * unit + i;
    for (int k = 0; k < 2; ++k) {
      const float value = old.at[k] + sum[k];
      stream[at + 4 * k] = value;
      if (keep != nullptr) keep[at + 4 * k] = value;
    }
  }
};

// A TargetT of multiply_rows: writes silu(gate) * up.
template <class NumberT>
struct activated_target {
  struct ready_type {};

  NumberT* activated;
  std::int32_t width;

  __device__ ready_type prepare(std::int32_t, std::int32_t, std::int32_t) const { return {}; }
  __device__ void store(ready_type, std::int32_t, std::int32_t row, std::int32_t unit, std::int32_t i,
                        const float (&sum)[2]) const {
    activated[static_cast<std::int64_t>(row) * width + 4 * unit + i] = NumberT(silu(sum[0]) * sum[1]);
  }
};

template <class LogitT>
struct logit_target {
  struct ready_type {};

  LogitT* logits;
  std::int32_t columns;

  __device__ ready_type prepare(std::int32_t, std::int32_t, std::int32_t) const { return {}; }
  __device__ void store(ready_type, std::int32_t output, std::int32_t, std::int32_t unit, std::int32_t i,
                        const float (&sum)[2]) const {
    LogitT* const to = logits + static_cast<std::int64_t>(output) * columns + 8 * unit + i;
    to[0] = LogitT(sum[0]), to[4] = LogitT(sum[1]);
  }
};

}  // namespace espalier::cuda::detail
