// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/model/llama/activate.cuh"
#include "espalier/cuda/model/llama/number.cuh"

namespace espalier::cuda::detail {

// The arguments of the kernels of a mixture of experts. A use is a row with one of its experts: use number
// row * used + k has the row's k-th expert, and the experts of a row ascend. A device may have a part of each expert:
// `inner` of its intermediate size in gate and up, and `inputs` inputs and `width` outputs of down.
//
// Shapes: sequence_of [rows], below 0 for padding, which uses no expert; routed [rows][routed_stride], of which the
// first `experts` are products of the router without router_bias; from [rows][hidden]; gate, up
// [experts][inner][hidden], and biases [experts][inner]; down
// [experts][width][inputs], and biases at distances of down_bias_stride; chosen [rows * used], -1 in padding; factors
// [rows * used]; activated [rows * used][inner], read as [rows * used][inputs]; outputs [rows * used][width]; to
// [rows][width]. Biases may be null
template <class NumberT>
struct mixture_job {
  const std::int32_t* sequence_of = nullptr;
  const float* routed = nullptr;
  const float* router_bias = nullptr;
  const NumberT* from = nullptr;
  const NumberT* gate = nullptr;
  const NumberT* up = nullptr;
  const NumberT* down = nullptr;
  const float* gate_bias = nullptr;
  const float* up_bias = nullptr;
  const float* down_bias = nullptr;
  std::int32_t* chosen = nullptr;
  float* factors = nullptr;
  NumberT* activated = nullptr;
  float* outputs = nullptr;
  float* to = nullptr;
  std::int32_t rows = 0;
  std::int32_t experts = 0;
  std::int32_t routed_stride = 0;
  std::int32_t used = 0;
  std::int32_t hidden = 0;
  std::int32_t inner = 0;
  std::int32_t inputs = 0;
  std::int32_t width = 0;
  std::int32_t down_bias_stride = 0;
  bool sums_to_one = true;
  float limit = 0.0F;  // limit and gain: as in mixture_shape
  float gain = 1.0F;
};

inline constexpr int mixture_warps = 4;
inline constexpr int mixture_uses = 8;                           // uses of an expert that a warp computes together
inline constexpr int mixture_columns = 8;                        // rows of matrices that a warp computes together
inline constexpr std::int32_t mixture_list = mixture_uses + 32;  // numbers in a warp's list of uses
inline constexpr std::size_t mixture_shared_bytes = mixture_warps * mixture_list * sizeof(std::int32_t);

// Chooses the experts of each row, as espalier::detail::expert_choice: those with the greatest numbers, of equal ones
// those with the lower index. A row whose numbers have no softmax, such as one with a NaN, gets factors of NaN. One
// warp works on a row.
template <class NumberT>
ESPALIER_KERNEL void choose_experts(mixture_job<NumberT> job) {
  ptx::await_previous();
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const auto row = static_cast<std::int32_t>(blockIdx.x * mixture_warps + threadIdx.x / 32);
  if (row >= job.rows) return;
  if (job.sequence_of[row] < 0) {
    for (std::int32_t k = lane; k < job.used; k += 32)
      job.chosen[row * job.used + k] = -1;
    return;
  }
  const auto number = [&](std::int32_t e) {
    const float routed = job.routed[static_cast<std::int64_t>(row) * job.routed_stride + e];
    return job.router_bias != nullptr ? routed + job.router_bias[e] : routed;
  };
  float most = -INFINITY;
  for (std::int32_t e = lane; e < job.experts; e += 32)
    most = fmaxf(most, number(e));
  for (int other = 16; other > 0; other /= 2)
    most = fmaxf(most, __shfl_xor_sync(0xFFFFFFFFU, most, other));
  float total = 0.0F;
  for (std::int32_t e = lane; e < job.experts; e += 32)
    total += expf(number(e) - most);
  total = sum_of_lanes(total);
  const bool known = total >= 1.0F;  // the greatest number adds 1

  // Finds the last of the chosen experts: the one that follows used - 1 others.
  float last = INFINITY;
  std::int32_t last_at = -1;
  for (std::int32_t k = 0; known && k < job.used; ++k) {
    float best = -INFINITY;
    std::int32_t at = job.experts;
    for (std::int32_t e = lane; e < job.experts; e += 32) {
      const float x = number(e);
      const bool follows = x < last || (x == last && e > last_at);
      if (follows && (at == job.experts || x > best)) best = x, at = e;
    }
    for (int step = 16; step > 0; step /= 2) {
      const float other = __shfl_xor_sync(0xFFFFFFFFU, best, step);
      const std::int32_t other_at = __shfl_xor_sync(0xFFFFFFFFU, at, step);
      if (other > best || (other == best && other_at < at)) best = other, at = other_at;
    }
    last = best, last_at = at;
  }

  const auto is_chosen = [&](std::int32_t e) {
    if (e >= job.experts) return false;
    const float x = number(e);
    return known ? x > last || (x == last && e <= last_at) : e < job.used;
  };
  float sum = 0.0F;
  for (std::int32_t e = lane; e < job.experts; e += 32)
    sum += is_chosen(e) ? expf(number(e) - most) / total : 0.0F;
  sum = job.sums_to_one ? sum_of_lanes(sum) : 1.0F;
  std::int32_t use = row * job.used;
  for (std::int32_t first = 0; first < job.experts; first += 32) {
    const std::int32_t e = first + lane;
    const bool mine = is_chosen(e);
    const unsigned those = __ballot_sync(0xFFFFFFFFU, mine ? 1 : 0);
    if (mine) {
      const std::int32_t own = use + __popc(those & ((1U << lane) - 1U));
      job.chosen[own] = e;
      job.factors[own] = known ? expf(number(e) - most) / total / sum : NAN;
    }
    use += __popc(those);
  }
}

// Calls visit(uses, n) with all uses of an expert, at most mixture_uses at a time, whose numbers stand in `list`.
// Called by a whole warp, in a block with mixture_shared_bytes.
template <class NumberT, class VisitT>
__device__ void visit_uses(const mixture_job<NumberT>& job, std::int32_t expert, const VisitT& visit) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  std::int32_t* const list = reinterpret_cast<std::int32_t*>(shared_memory()) + threadIdx.x / 32 * mixture_list;
  std::int32_t n = 0;
  for (std::int32_t first = 0; first < job.rows; first += 32) {
    const std::int32_t row = first + lane;
    std::int32_t use = -1;
    for (std::int32_t k = 0; row < job.rows && k < job.used; ++k) {
      if (job.chosen[row * job.used + k] == expert) use = row * job.used + k;
    }
    const unsigned those = __ballot_sync(0xFFFFFFFFU, use >= 0 ? 1 : 0);
    if (use >= 0) list[n + __popc(those & ((1U << lane) - 1U))] = use;
    n += __popc(those);
    __syncwarp();
    std::int32_t done = 0;
    for (; n - done >= mixture_uses; done += mixture_uses)
      visit(list + done, mixture_uses);
    n -= done;
    const std::int32_t left = lane < n ? list[done + lane] : 0;
    __syncwarp();
    if (lane < n) list[lane] = left;
    __syncwarp();
  }
  if (n > 0) visit(list, n);
}

// Computes the sums of products of mixture_columns rows of weights, row_of(c), with n rows of numbers, from(r). All
// lanes get all sums. A sum depends on its two rows alone. Called by a whole warp.
template <int RunT, class NumberT, class WeightsT, class FromT>
__device__ void multiply_uses(float (&sum)[mixture_columns][mixture_uses], std::int32_t inputs, std::int32_t n,
                              const WeightsT& row_of, const FromT& from) {
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x % 32) * RunT; i < inputs; i += 32 * RunT) {
    number_run<NumberT, RunT> weights[mixture_columns];
    ESPALIER_UNROLL
    for (int c = 0; c < mixture_columns; ++c)
      weights[c] = load_run<RunT>(row_of(c) + i);
    ESPALIER_UNROLL
    for (int r = 0; r < mixture_uses; ++r) {
      if (r >= n) break;
      const auto x = load_run<RunT>(from(r) + i);
      ESPALIER_UNROLL
      for (int c = 0; c < mixture_columns; ++c) {
        ESPALIER_UNROLL
        for (int k = 0; k < RunT; ++k)
          sum[c][r] = fmaf(static_cast<float>(weights[c].at[k]), static_cast<float>(x.at[k]), sum[c][r]);
      }
    }
  }
  ESPALIER_UNROLL
  for (int r = 0; r < mixture_uses; ++r) {
    if (r >= n) break;
    ESPALIER_UNROLL
    for (int c = 0; c < mixture_columns; ++c)
      sum[c][r] = sum_of_lanes(sum[c][r]);
  }
}

__device__ inline float limited_silu(float gate, float up, float gain, float limit) {
  const float g = gate > limit ? limit : gate, u = up > limit ? limit : up < -limit ? -limit : up;
  return g / (1.0F + expf(-gain * g)) * (u + 1.0F);
}

// Writes the activations of an expert for the rows that use it. A warp computes a few columns.
//
// Shapes: grid: columns, experts
template <class NumberT, int RunT>
ESPALIER_KERNEL void widen_experts(mixture_job<NumberT> job) {
  constexpr int per_warp = mixture_columns / 2;  // columns of gate, and as many of up
  ptx::await_previous();
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32), warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const auto expert = static_cast<std::int32_t>(blockIdx.y);
  const std::int32_t first = (static_cast<std::int32_t>(blockIdx.x) * mixture_warps + warp) * per_warp;
  if (first >= job.inner) return;
  const std::int64_t matrix = static_cast<std::int64_t>(expert) * job.inner;
  const auto row_of = [&](int c) {
    const std::int32_t column = first + c % per_warp;
    const NumberT* const weights = c < per_warp ? job.gate : job.up;
    return weights + (matrix + (column < job.inner ? column : job.inner - 1)) * job.hidden;
  };
  visit_uses(job, expert, [&](const std::int32_t* uses, std::int32_t n) {
    float sum[mixture_columns][mixture_uses] = {};
    multiply_uses<RunT, NumberT>(sum, job.hidden, n, row_of, [&](int r) {
      return job.from + static_cast<std::int64_t>(uses[r] / job.used) * job.hidden;
    });
    // Each lane takes one use and one column.
    float gate = 0.0F, up = 0.0F;
    ESPALIER_UNROLL
    for (int r = 0; r < mixture_uses; ++r) {
      ESPALIER_UNROLL
      for (int c = 0; c < per_warp; ++c) {
        if (lane == r * per_warp + c) gate = sum[c][r], up = sum[per_warp + c][r];
      }
    }
    const std::int32_t column = first + lane % per_warp;
    if (lane / per_warp >= n || column >= job.inner) return;
    if (job.gate_bias != nullptr) gate += job.gate_bias[matrix + column], up += job.up_bias[matrix + column];
    job.activated[static_cast<std::int64_t>(uses[lane / per_warp]) * job.inner + column] =
        NumberT(job.limit > 0.0F ? limited_silu(gate, up, job.gain, job.limit) : silu(gate) * up);
  });
}

// Writes the outputs of an expert for the rows that use it. A warp computes a few columns.
//
// Shapes: grid: columns, experts
template <class NumberT, int RunT>
ESPALIER_KERNEL void narrow_experts(mixture_job<NumberT> job) {
  constexpr int turns = mixture_columns * mixture_uses / 32;  // numbers that a lane writes
  ptx::await_previous();
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32), warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const auto expert = static_cast<std::int32_t>(blockIdx.y);
  const std::int32_t first = (static_cast<std::int32_t>(blockIdx.x) * mixture_warps + warp) * mixture_columns;
  if (first >= job.width) return;
  const std::int64_t matrix = static_cast<std::int64_t>(expert) * job.width;
  const auto row_of = [&](int c) {
    return job.down + (matrix + (first + c < job.width ? first + c : job.width - 1)) * job.inputs;
  };
  visit_uses(job, expert, [&](const std::int32_t* uses, std::int32_t n) {
    float sum[mixture_columns][mixture_uses] = {};
    multiply_uses<RunT, NumberT>(sum, job.inputs, n, row_of, [&](int r) {
      return job.activated + static_cast<std::int64_t>(uses[r]) * job.inputs;
    });
    float own[turns] = {};
    ESPALIER_UNROLL
    for (int r = 0; r < mixture_uses; ++r) {
      ESPALIER_UNROLL
      for (int c = 0; c < mixture_columns; ++c) {
        if (lane == (r * mixture_columns + c) % 32) own[(r * mixture_columns + c) / 32] = sum[c][r];
      }
    }
    const std::int32_t column = first + lane % mixture_columns;
    ESPALIER_UNROLL
    for (int turn = 0; turn < turns; ++turn) {
      const std::int32_t r = (turn * 32 + lane) / mixture_columns;
      if (r >= n || column >= job.width) continue;
      const float bias =
          job.down_bias != nullptr ? job.down_bias[std::int64_t{expert} * job.down_bias_stride + column] : 0.0F;
      job.outputs[static_cast<std::int64_t>(uses[r]) * job.width + column] = own[turn] + bias;
    }
  });
}

inline constexpr int add_experts_threads = 256;

// Adds to each row of `to` the outputs of its experts, multiplied by their factors, in the order of the experts.
//
// Shapes: grid: rows, blocks of columns
template <class NumberT>
ESPALIER_KERNEL void add_experts(mixture_job<NumberT> job) {
  ptx::await_previous();
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  const auto column = static_cast<std::int32_t>(blockIdx.y * add_experts_threads + threadIdx.x);
  if (column >= job.width) return;
  float* const to = job.to + static_cast<std::int64_t>(row) * job.width + column;
  float sum = *to;
  for (std::int32_t use = row * job.used; use < (row + 1) * job.used && job.chosen[use] >= 0; ++use)
    sum = fmaf(job.factors[use], job.outputs[static_cast<std::int64_t>(use) * job.width + column], sum);
  *to = sum;
}

// The launches of the kernels above, which compute a mixture of experts in the order of the functions here. Each matrix
// of an expert is read from memory once for all rows that use it, and the matrices of experts that no row uses not at
// all.
//
// Complexity: rows * used * (2 hidden * inner + inputs * width) multiplications. They do not run on tensor cores: where
// an expert has many rows, as in long prompts, arithmetic is the limit, not memory. Nothing synchronises
template <class NumberT>
struct mixture_launcher {
  const mixture_job<NumberT>& job;
  cudaStream_t stream;

  void choose() const {
    launch("choose_experts", choose_experts<NumberT>,
           {.grid = blocks_for(job.rows, mixture_warps), .threads = 32 * mixture_warps, .overlaps = true}, stream, job);
  }
  void widen() const {
    if (job.inner == 0) return;
    with_run_of(job.hidden, [&](auto run) {
      launch("widen_experts", widen_experts<NumberT, run.value>,
             {.grid = dim3(blocks_for(job.inner, mixture_warps * mixture_columns / 2), experts()),
              .threads = 32 * mixture_warps,
              .shared_bytes = mixture_shared_bytes,
              .overlaps = true},
             stream, job);
    });
  }
  void narrow() const {
    if (job.width == 0) return;
    with_run_of(job.inputs, [&](auto run) {
      launch("narrow_experts", narrow_experts<NumberT, run.value>,
             {.grid = dim3(blocks_for(job.width, mixture_warps * mixture_columns), experts()),
              .threads = 32 * mixture_warps,
              .shared_bytes = mixture_shared_bytes,
              .overlaps = true},
             stream, job);
    });
  }
  void add() const {
    if (job.width == 0) return;
    launch("add_experts", add_experts<NumberT>,
           {.grid = dim3(static_cast<unsigned>(job.rows), blocks_for(job.width, add_experts_threads)),
            .threads = add_experts_threads,
            .overlaps = true},
           stream, job);
  }

 private:
  static unsigned blocks_for(std::int32_t items, std::int32_t per_block) {
    return static_cast<unsigned>((items + per_block - 1) / per_block);
  }
  unsigned experts() const { return static_cast<unsigned>(job.experts); }
};

}  // namespace espalier::cuda::detail
