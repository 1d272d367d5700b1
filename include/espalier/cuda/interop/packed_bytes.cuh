// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/interop/conversions.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/interop/sequence_mask.hpp"

namespace espalier::cuda::interop::detail {

//! Writes the bytes of all sequences to `out`, one sequence after the other. The number of bytes of a sequence follows
//! from its prefix and rows, which the device alone knows.
//!
//! FormatT has bytes(mask), the number of bytes of a sequence; byte(mask, i), one of these bytes; and began(sequence,
//! begin), called once for each sequence, and once with n_sequences and the end of all. Blocks whose blockIdx.y is s
//! work for sequence s. If the batch has no sequence, there is one block, which calls began(0, 0).
template <class FormatT>
ESPALIER_KERNEL void write_packed_bytes(forward_batch_view batch, FormatT format, std::uint8_t* out,
                                        std::int64_t capacity) {
  using espalier::interop::sequence_mask;
  const auto s = static_cast<std::int32_t>(blockIdx.y);
  if (batch.n_sequences == 0) {
    if (threadIdx.x == 0) format.began(0, 0);
    return;
  }
  std::int64_t begin = 0;
  for (std::int32_t i = 0; i < s; ++i)
    begin += format.bytes(sequence_mask(batch.sequences[i], batch.mask));
  const sequence_mask mask(batch.sequences[s], batch.mask);
  const std::int64_t bytes = format.bytes(mask);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    format.began(s, begin);
    if (s + 1 == batch.n_sequences) format.began(s + 1, begin + bytes);
  }
  const std::int64_t room = capacity - begin, end = bytes < room ? bytes : room;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < end; i += stride)
    out[begin + i] = format.byte(mask, i);
}

//! Launches write_packed_bytes. `bytes` is the largest number that all sequences together can have.
template <class FormatT>
void launch_packed_bytes(const char* name, const forward_batch_view& batch, const FormatT& format, std::uint8_t* out,
                         std::int64_t capacity, std::int64_t bytes, cudaStream_t stream) {
  constexpr unsigned threads = 256;
  const std::int32_t n = batch.n_sequences > 1 ? batch.n_sequences : 1;
  const std::int64_t blocks = batch.n_sequences > 0 ? (bytes / n + threads - 1) / threads : 1;
  launch(name, write_packed_bytes<FormatT>,
         {.grid = dim3(static_cast<unsigned>(blocks < 1      ? 1
                                             : blocks > 1024 ? 1024
                                                             : blocks),
                       static_cast<unsigned>(n)),
          .threads = threads},
         stream, batch, format, out, capacity);
}

}  // namespace espalier::cuda::interop::detail
