// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/block_diffusion.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"

namespace espalier::cuda::detail {

// The arguments of convolve(), which makes of each number of a row the sum over the row's own number and those of the
// rows before it in its sequence, n_taps in all, each times the sum of two factors: that of `taps`, and that which the
// row itself gives for the number's group.
//
// Shapes: from [rows][width]; taps [n_taps][width]; factors [rows][factor_stride], of which the first
// [n_taps][width / group] are read; to [rows][width], to which the result is added, or nullptr: it replaces `from`
template <class NumberT>
struct convolve_job {
  NumberT* from = nullptr;
  const float* taps = nullptr;
  const float* factors = nullptr;
  float* to = nullptr;
  std::int32_t width = 0;
  std::int32_t group = 1;
  std::int32_t n_taps = 0;
  std::int32_t factor_stride = 0;
};

inline constexpr int convolve_threads = 256;

// The kernel of convolve(): a thread works on one number of each row of a sequence, from the last row on, so that the
// rows before a row are as they were.
template <class NumberT>
ESPALIER_KERNEL void convolve_rows(convolve_job<NumberT> job, forward_batch_view batch) {
  const batch_sequence s = batch.sequences[blockIdx.y];
  const auto i = static_cast<std::int32_t>(blockIdx.x * convolve_threads + threadIdx.x);
  if (i >= job.width) return;
  const std::int32_t groups = job.width / job.group;
  for (std::int32_t row = s.row_end - 1; row >= s.row_begin; --row) {
    const std::int64_t at = std::int64_t{row} * job.width + i;
    const float* const factors = job.factors + std::int64_t{row} * job.factor_stride + i / job.group;
    float sum = 0.0F;
    for (std::int32_t tap = 0; tap < job.n_taps && tap <= row - s.row_begin; ++tap) {
      const float x = static_cast<float>(job.from[at - std::int64_t{tap} * job.width]);
      sum += x * (job.taps[tap * job.width + i] + factors[tap * groups]);
    }
    if (job.to != nullptr) {
      job.to[at] += sum;
    } else {
      job.from[at] = NumberT(sum);
    }
  }
}

template <class NumberT>
void convolve(const convolve_job<NumberT>& job, const forward_batch_view& batch, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((job.width + convolve_threads - 1) / convolve_threads);
  launch("convolve_rows", convolve_rows<NumberT>,
         {.grid = dim3(blocks, static_cast<unsigned>(batch.n_sequences)), .threads = convolve_threads}, stream, job,
         batch);
}

}  // namespace espalier::cuda::detail
