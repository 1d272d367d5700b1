// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/llama/llama_backend.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/read_ahead.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/model/llama/model_steps.hpp"

namespace espalier::cuda::detail {

// The arguments of activate(), which computes the activation between the two products of an MLP: silu(gate) * up,
// gelu(gate) * up (gelu in the form with tanh), or, without a gate, gelu(up) (in the exact form). If `shared` is given,
// a row's result is multiplied by the sigmoid of the row's number there.
//
// Shapes: in [rows][gate, up][width], or [rows][width] without a gate; bias as a row of in, or null; out [rows][width];
// shared: one number at distances of shared_stride, or null
template <class NumberT>
struct activate_job {
  const NumberT* in = nullptr;
  const float* bias = nullptr;
  NumberT* out = nullptr;
  const float* shared = nullptr;
  std::int32_t shared_stride = 0;
  std::int32_t width = 0;
  espalier::detail::activation_kind kind = espalier::detail::activation_kind::silu_gate;
  read_ahead next{};   // weights that the grid's thread blocks beyond the first n only prefetch
  std::int32_t n = 0;  // rows

  ESPALIER_HOST_DEVICE bool has_gate() const { return kind != espalier::detail::activation_kind::gelu; }
};

inline constexpr int activate_threads = 256;

__device__ inline float sigmoid(float x) {
  return 1.0F / (1.0F + expf(-x));
}

__device__ inline float silu(float x) {
  return x / (1.0F + expf(-x));
}

__device__ inline float gelu(float x) {
  return 0.5F * x * (1.0F + erff(x * 0.70710678F));
}

// GELU by its form with tanh: x * (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3); (1 + tanh(u)) / 2 is 1 /
// (1 + e^(-2 u)).
__device__ inline float gelu_tanh(float x) {
  return x / (1.0F + expf(x * (x * x * -0.0713548162726F + -1.59576912161F)));
}

template <class NumberT, int RunT>
ESPALIER_KERNEL void activate_rows(activate_job<NumberT> job) {
  using kinds = espalier::detail::activation_kind;
  if (!job.next.ask_beside(job.n)) return;
  const std::int32_t i = static_cast<std::int32_t>(blockIdx.y * activate_threads + threadIdx.x) * RunT;
  if (i >= job.width) return;
  const std::int32_t up_at = job.has_gate() ? job.width : 0;
  const NumberT* in = job.in + static_cast<std::int64_t>(blockIdx.x) * (job.width + up_at);
  const auto up = load_run<RunT>(in + up_at + i);
  number_run<NumberT, RunT> gate{};
  if (job.has_gate()) gate = load_run<RunT>(in + i);
  const float shared =
      job.shared != nullptr ? sigmoid(job.shared[static_cast<std::int64_t>(blockIdx.x) * job.shared_stride]) : 1.0F;
  number_run<NumberT, RunT> out;
  for (int k = 0; k < RunT; ++k) {
    const auto with_bias = [&](NumberT x, std::int32_t at) {
      return static_cast<float>(x) + (job.bias != nullptr ? job.bias[at + k] : 0.0F);
    };
    const float u = with_bias(up.at[k], up_at + i), g = job.has_gate() ? with_bias(gate.at[k], i) : 0.0F;
    const float activated = job.kind == kinds::gelu        ? gelu(u)
                            : job.kind == kinds::silu_gate ? silu(g) * u
                                                           : gelu_tanh(g) * u;
    out.at[k] = NumberT(activated * shared);
  }
  store_run<RunT>(job.out + static_cast<std::int64_t>(blockIdx.x) * job.width + i, out);
}

template <class NumberT>
void activate(activate_job<NumberT> job, int n, cudaStream_t stream) {
  if (n == 0) return;
  job.n = n;
  with_run_of(job.width, [&](auto run) {
    constexpr int per_block = activate_threads * run.value;
    const auto of_width = static_cast<unsigned>((job.width + per_block - 1) / per_block);
    launch("activate_rows", activate_rows<NumberT, run.value>,
           {.grid = job.next.grid_beside(n, of_width), .threads = activate_threads, .overlaps = true}, stream, job);
  });
}

// The arguments of gate(), which multiplies the results of attention by the sigmoids of their gates.
//
// Shapes: gates [rows][stride], of which the first `width` are read; bias [width] or null; mixed [rows][width]
template <class NumberT>
struct gate_job {
  const NumberT* gates = nullptr;
  const float* bias = nullptr;
  NumberT* mixed = nullptr;
  std::int32_t width = 0;
  std::int32_t stride = 0;
};

template <class NumberT>
ESPALIER_KERNEL void gate_mixed(gate_job<NumberT> job) {
  const auto i = static_cast<std::int32_t>(blockIdx.y * activate_threads + threadIdx.x);
  if (i >= job.width) return;
  const float gate = static_cast<float>(job.gates[static_cast<std::int64_t>(blockIdx.x) * job.stride + i]);
  NumberT& to = job.mixed[static_cast<std::int64_t>(blockIdx.x) * job.width + i];
  to = NumberT(static_cast<float>(to) * sigmoid(job.bias != nullptr ? gate + job.bias[i] : gate));
}

template <class NumberT>
void gate(const gate_job<NumberT>& job, int n, cudaStream_t stream) {
  if (n == 0) return;
  const auto of_width = static_cast<unsigned>((job.width + activate_threads - 1) / activate_threads);
  launch("gate_mixed", gate_mixed<NumberT>,
         {.grid = dim3(static_cast<unsigned>(n), of_width), .threads = activate_threads}, stream, job);
}

}  // namespace espalier::cuda::detail
