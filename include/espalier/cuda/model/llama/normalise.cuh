// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/llama/llama_backend.cu
#pragma once

#include <cuda_runtime.h>
#include <cub/block/block_reduce.cuh>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/read_ahead.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/model/llama/number.cuh"

namespace espalier::cuda::detail {

// The arguments of normalise(), which makes the inputs of products from rows of the residual stream. It adds the biases
// that the products before have left out, copies the row to `keep` if that is given, and normalises it by up to two
// norms, both of one kind: LayerNorm if norms[0] has a bias, RMSNorm if it has none. If `output` is given, the biases
// are added to `output`, and the RMSNorm of `output`, or a multiple of `output`, is added to the stream.
//
// Shapes: stream, output, keep [rows][width]; added, output_scale, scale, bias [width]; out [n][width]
template <class NumberT>
struct normalise_job {
  struct norm {
    const float* scale = nullptr;  // null: the row is copied to `out` as it is
    const float* bias = nullptr;
    NumberT* out = nullptr;  // null: there is no such norm
  };

  float* stream = nullptr;
  const float* added[2] = {};
  const float* output = nullptr;        // a product that has not joined the stream yet, or null
  const float* output_scale = nullptr;  // scale of the norm of `output`; null: it is multiplied by output_factor
  float output_factor = 1.0F;
  bool settles = false;   // whether the sums are written back to the stream
  float* keep = nullptr;  // where a copy of the stream goes, or null
  norm norms[2];
  const std::int32_t* rows =
      nullptr;  // [n] the row of the stream that out[i] is made from; -1: out[i] of norms[0] becomes 0; null: row i. If
                // it is given, settles must be false and keep null
  std::int32_t width = 0;
  std::int32_t n = 0;  // rows of `out`
  float epsilon = 0;
  read_ahead next{};  // weights that the grid's thread blocks beyond the first n only prefetch

  // Returns a job over this stream that has nothing to do yet.
  static normalise_job of(float* stream, int width, float epsilon) {
    normalise_job job;
    job.stream = stream;
    job.width = width;
    job.epsilon = epsilon;
    return job;
  }

  // Makes the job add a product's bias before it normalises; null: no bias. A job can add two biases at most.
  void add_later(const float* bias) {
    if (bias == nullptr) return;
    added[added[0] == nullptr ? 0 : 1] = bias;
    settles = true;
  }

  // Makes the job add the RMSNorm of a product's rows, with this scale, to the stream before it normalises.
  void add_normed(const float* product, const float* scale) {
    output = product, output_scale = scale;
    settles = true;
  }

  // Makes the job add a product's rows, times this factor, to the stream before it normalises.
  void add_scaled(const float* product, float factor) {
    output = product, output_factor = factor;
    settles = true;
  }
};

inline constexpr int normalise_threads = 256;

struct normalise_memory {
  using reduce_type = cub::BlockReduce<float, normalise_threads>;

  typename reduce_type::TempStorage storage;
  float sum;
};

// Returns to every thread of a block the sum of the values of all its threads. Each block adds in the same order.
__device__ inline float block_sum(normalise_memory& memory, float value) {
  const float sum = normalise_memory::reduce_type(memory.storage).Sum(value);
  if (threadIdx.x == 0) memory.sum = sum;
  __syncthreads();
  const float all = memory.sum;
  __syncthreads();
  return all;
}

// The kernel of normalise(): one block for each row. A thread reads its first 8 runs of numbers of a row once and keeps
// them; it reads further runs anew for each sum over the row.
template <class NumberT, int RunT>
ESPALIER_KERNEL void normalise_rows(normalise_job<NumberT> job) {
  if (!job.next.ask_beside(job.n)) return;
  auto& memory = *reinterpret_cast<normalise_memory*>(shared_memory());
  const std::int32_t row = job.rows != nullptr ? job.rows[blockIdx.x] : static_cast<std::int32_t>(blockIdx.x);
  const std::int64_t from = static_cast<std::int64_t>(row) * job.width,
                     to = static_cast<std::int64_t>(blockIdx.x) * job.width;
  const std::int32_t first = static_cast<std::int32_t>(threadIdx.x) * RunT;
  constexpr std::int32_t step = normalise_threads * RunT;
  if (row < 0) {
    for (std::int32_t i = first; i < job.width; i += step)
      store_run<RunT>(job.norms[0].out + to + i, number_run<NumberT, RunT>{});
    return;
  }
  const auto with_biases = [&](const float* rows, std::int32_t i) {
    number_run<float, RunT> run = load_run<RunT>(rows + from + i);
    for (const float* added : job.added) {
      for (int k = 0; added != nullptr && k < RunT; ++k)
        run.at[k] += added[i + k];
    }
    return run;
  };
  float output_factor = job.output_factor;
  if (job.output != nullptr && job.output_scale != nullptr) {
    float squares = 0.0F;
    for (std::int32_t i = first; i < job.width; i += step) {
      const auto run = with_biases(job.output, i);
      for (int k = 0; k < RunT; ++k)
        squares += run.at[k] * run.at[k];
    }
    output_factor = 1.0F / sqrtf(block_sum(memory, squares) / static_cast<float>(job.width) + job.epsilon);
  }
  const auto value = [&](std::int32_t i) {
    if (job.output == nullptr) return with_biases(job.stream, i);
    number_run<float, RunT> run = load_run<RunT>(job.stream + from + i);
    const auto more = with_biases(job.output, i);
    for (int k = 0; k < RunT; ++k)
      run.at[k] += more.at[k] * output_factor * (job.output_scale != nullptr ? job.output_scale[i + k] : 1.0F);
    return run;
  };
  constexpr int n_kept = 8;
  number_run<float, RunT> kept[n_kept];
  ESPALIER_UNROLL
  for (int j = 0; j < n_kept; ++j) {
    const std::int32_t i = first + j * step;
    if (i < job.width) kept[j] = value(i);
  }
  // Calls visit(i, run) for the thread's runs, in order.
  const auto each = [&](const auto& visit) {
    ESPALIER_UNROLL
    for (int j = 0; j < n_kept; ++j) {
      const std::int32_t i = first + j * step;
      if (i < job.width) visit(i, kept[j]);
    }
    for (std::int32_t i = first + n_kept * step; i < job.width; i += step)
      visit(i, value(i));
  };
  float mean = 0.0F, factor = 0.0F;
  if (job.norms[0].scale != nullptr) {
    if (job.norms[0].bias != nullptr) {
      float total = 0.0F;
      each([&](std::int32_t, const auto& run) {
        for (int k = 0; k < RunT; ++k)
          total += run.at[k];
      });
      mean = block_sum(memory, total) / static_cast<float>(job.width);
    }
    float squares = 0.0F;
    each([&](std::int32_t, const auto& run) {
      for (int k = 0; k < RunT; ++k)
        squares += (run.at[k] - mean) * (run.at[k] - mean);
    });
    factor = 1.0F / sqrtf(block_sum(memory, squares) / static_cast<float>(job.width) + job.epsilon);
  }
  each([&](std::int32_t i, const auto& run) {
    if (job.settles) store_run<RunT>(job.stream + from + i, run);
    if (job.keep != nullptr) store_run<RunT>(job.keep + from + i, run);
    for (const auto& norm : job.norms) {
      if (norm.out == nullptr) continue;
      number_run<NumberT, RunT> out;
      for (int k = 0; k < RunT; ++k) {
        const float normal = norm.scale != nullptr ? (run.at[k] - mean) * factor * norm.scale[i + k] : run.at[k];
        out.at[k] = NumberT(norm.bias != nullptr ? normal + norm.bias[i + k] : normal);
      }
      store_run<RunT>(norm.out + to + i, out);
    }
  });
}

template <class NumberT>
void normalise(normalise_job<NumberT> job, int n, cudaStream_t stream) {
  if (n == 0) return;
  job.n = n;
  with_run_of(job.width, [&](auto run) {
    launch("normalise_rows", normalise_rows<NumberT, run.value>,
           {.grid = job.next.grid_beside(n),
            .threads = normalise_threads,
            .shared_bytes = sizeof(normalise_memory),
            .overlaps = true},
           stream, job);
  });
}

// The arguments of norm_heads(), which normalises the queries of each row in place, all heads as one row of numbers,
// and the keys likewise.
//
// Shapes: projected [n][stride], of each row first widths[0] numbers of queries, then widths[1] of keys; scales[i]
// [widths[i]]
template <class NumberT>
struct norm_heads_job {
  NumberT* projected = nullptr;
  const float* scales[2] = {};
  std::int32_t widths[2] = {};
  std::int32_t stride = 0;
  float epsilon = 0;
};

// The kernel of norm_heads(): of each row, one block for the queries and one for the keys.
template <class NumberT>
ESPALIER_KERNEL void norm_heads_rows(norm_heads_job<NumberT> job) {
  auto& memory = *reinterpret_cast<normalise_memory*>(shared_memory());
  const auto which = static_cast<std::int32_t>(blockIdx.x % 2), first = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t width = job.widths[which];
  NumberT* x = job.projected + static_cast<std::int64_t>(blockIdx.x / 2) * job.stride + which * job.widths[0];
  float squares = 0.0F;
  for (std::int32_t i = first; i < width; i += normalise_threads)
    squares += static_cast<float>(x[i]) * static_cast<float>(x[i]);
  const float factor = 1.0F / sqrtf(block_sum(memory, squares) / static_cast<float>(width) + job.epsilon);
  for (std::int32_t i = first; i < width; i += normalise_threads)
    x[i] = NumberT(static_cast<float>(x[i]) * factor * job.scales[which][i]);
}

template <class NumberT>
void norm_heads(const norm_heads_job<NumberT>& job, int n, cudaStream_t stream) {
  if (n == 0) return;
  launch("norm_heads_rows", norm_heads_rows<NumberT>,
         {.grid = static_cast<unsigned>(2 * n), .threads = normalise_threads, .shared_bytes = sizeof(normalise_memory)},
         stream, job);
}

}  // namespace espalier::cuda::detail
