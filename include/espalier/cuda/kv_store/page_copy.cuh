// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"

namespace espalier::cuda::detail {

inline constexpr unsigned page_copy_threads = 128;

//! Each thread copies one chunk. A page has all its keys and values of a layer in one piece.
template <class ChunkT, class NumberT>
ESPALIER_KERNEL void copy_chunks(kv_view<NumberT> kv, std::int32_t from, std::int32_t to, std::int64_t piece) {
  const std::int64_t chunks = piece * static_cast<std::int64_t>(sizeof(NumberT)) / sizeof(ChunkT);
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= kv.n_layers * chunks) return;
  NumberT* const layer = kv.data + i / chunks * kv.layer_stride;
  reinterpret_cast<ChunkT*>(layer + to * piece)[i % chunks] =
      reinterpret_cast<const ChunkT*>(layer + from * piece)[i % chunks];
}

template <class ChunkT, class NumberT>
void launch_page_copy(const kv_view<NumberT>& kv, std::int32_t from, std::int32_t to, cudaStream_t stream) {
  const std::int64_t piece = std::int64_t{2} * kv.page_size * kv.row_size;
  const std::int64_t chunks =
      kv.n_layers * piece * static_cast<std::int64_t>(sizeof(NumberT)) / static_cast<std::int64_t>(sizeof(ChunkT));
  launch("copy_chunks", copy_chunks<ChunkT, NumberT>,
         {.grid = dim3(static_cast<unsigned>((chunks + page_copy_threads - 1) / page_copy_threads)),
          .threads = page_copy_threads},
         stream, kv, from, to, piece);
}

//! Copies all rows of a page into another one, in every layer, in one launch.
//!
//! Complexity  reads and writes 2 * n_layers * page_size * row_size numbers, in pieces of 16 bytes where the size of a
//!             page is a multiple of that. No synchronisation, no allocation
template <class NumberT>
void copy_page(const kv_view<NumberT>& kv, std::int32_t from, std::int32_t to, cudaStream_t stream) {
  const std::size_t bytes =
      std::size_t{2} * static_cast<std::size_t>(kv.page_size) * static_cast<std::size_t>(kv.row_size) * sizeof(NumberT);
  if (bytes % sizeof(uint4) == 0) {
    launch_page_copy<uint4>(kv, from, to, stream);
  } else {
    launch_page_copy<NumberT>(kv, from, to, stream);
  }
}

}  // namespace espalier::cuda::detail
