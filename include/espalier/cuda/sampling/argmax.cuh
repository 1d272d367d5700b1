// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/sampling/top_children.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/team.cuh"
#include "espalier/cuda/sampling/row_tuning.cuh"
#include "espalier/cuda/sampling/team_sampler.cuh"

namespace espalier::cuda {

namespace detail {

template <class LogitT>
ESPALIER_KERNEL __launch_bounds__(row_threads, 1) void argmax_kernel(vocab_rows<LogitT> logits,
                                                                     team_sampler_layout layout, token_id* out,
                                                                     fault* found, row_origin from) {
  team::turns turns;
  const team who(*reinterpret_cast<team::memory*>(shared_memory()), turns);
  team_sampler<LogitT> sampler({}, layout, who, nullptr);
  const std::int32_t row = team::number();
  const token_id best = sampler.argmax(logits.at(row), logits.vocab, found, from.numbered(row));
  if (who.rank() == 0) out[row] = best;
}

}  // namespace detail

//! Writes, for each row, the token with the largest logit, ties to the lower id: espalier::argmax on the device.
//!
//! Shapes      logits [n_rows][vocab]; out [n_rows], -1 for a row that is refused
//! Complexity  one launch, one pass; a cluster of eight blocks works on a row, one block if there are no clusters,
//!             or for a vocabulary of at most 8192 tokens. No synchronisation
//! Errors      option_error for a vocabulary outside 1 to 2^20; cuda_error; a fault for a row that espalier::argmax
//!             refuses. The fault names the row `from`, with the number of the row as its index
template <class LogitT>
void argmax(vocab_rows<LogitT> logits, token_id* out, fault* found, row_origin from, cudaStream_t stream) {
  const detail::row_tuning tuning = detail::row_tuning_here(logits.vocab);
  const team_sampler_layout layout = team_sampler_layout::of({}, logits.vocab, tuning.blocks);
  if (logits.n_rows == 0) return;
  launch("argmax", detail::argmax_kernel<LogitT>, tuning.shape(logits.n_rows, sizeof(team::memory)), stream, logits,
         layout, out, found, from);
}

}  // namespace espalier::cuda
