// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/llama/llama_backend.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/model/llama/number.cuh"

namespace espalier::cuda::detail {

// The arguments of embed(), which writes the embedding of each token, times `scale`, into a row of the stream. A token
// that the table does not have gives a row of NaN. If the table is one rank's part of the vocabulary, the row is then
// taken from the rank that has the token; a token outside the whole vocabulary makes the logits NaN, which a verifier
// reports.
//
// Shapes: tokens [rows]; table [vocab][width], which begins with the embedding of token `first`; stream [rows][width]
template <class NumberT>
struct embed_job {
  const token_id* tokens = nullptr;
  const NumberT* table = nullptr;
  std::int32_t vocab = 0;
  std::int32_t width = 0;
  float* stream = nullptr;
  token_id first = 0;
  float scale = 1.0F;  // multiplies the embedding
};

inline constexpr int embed_threads = 256;

// The kernel of embed(): one block for each row.
template <class NumberT, int RunT>
ESPALIER_KERNEL void embed_rows(embed_job<NumberT> job) {
  ptx::allow_next();
  const token_id token = job.tokens[blockIdx.x] - job.first;
  const bool known = token >= 0 && token < job.vocab;
  const NumberT* from = job.table + static_cast<std::int64_t>(known ? token : 0) * job.width;
  float* to = job.stream + static_cast<std::int64_t>(blockIdx.x) * job.width;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x) * RunT; i < job.width; i += embed_threads * RunT) {
    const auto run = load_run<RunT>(from + i);
    number_run<float, RunT> out;
    for (int k = 0; k < RunT; ++k)
      out.at[k] = known ? static_cast<float>(run.at[k]) * job.scale : NAN;
    store_run<RunT>(to + i, out);
  }
}

template <class NumberT>
void embed(const embed_job<NumberT>& job, int n, cudaStream_t stream) {
  if (n == 0) return;
  with_run_of(job.width, [&](auto run) {
    launch("embed_rows", embed_rows<NumberT, run.value>, {.grid = static_cast<unsigned>(n), .threads = embed_threads},
           stream, job);
  });
}

}  // namespace espalier::cuda::detail
