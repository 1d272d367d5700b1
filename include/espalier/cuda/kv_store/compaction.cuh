// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/kv_store/stores.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"

namespace espalier::cuda::detail {

//! The launch shape of compact_rows. With it enough reads are under way to use the memory's bandwidth, even if few rows
//! move.
struct compaction_tuning {
  static constexpr int threads = 64;  //!< threads of a block: few, so that there are more blocks
  static constexpr int rows = 16;     //!< rows that a thread reads before it writes them
};

//! The place of a kept row's key before and after the move, counted in chunks from the beginning of the layer.
struct row_move {
  std::int64_t from;
  std::int64_t to;
};

//! Moves the kept rows of each text to the slots from its `base` on, in place. Blocks with the same blockIdx.y work for
//! one text. A thread has one chunk of a row, of the keys or the values of one layer, and moves this chunk for all
//! rows: several rows at a time, first reading and then writing. No barrier between rows is needed: no other thread
//! touches these chunks, and kept ascends, so kept[j] >= j, and each write goes below all rows that are still to be
//! read.
template <class ChunkT, class NumberT>
ESPALIER_KERNEL void compact_rows(kv_view<NumberT> kv, text_batch texts, kept_rows all_kept) {
  const std::int32_t place = texts.here().place;
  if (place < 0) return;
  const kept_rows kept = all_kept.of(place);
  const std::int32_t sequence = texts.first_sequence + place;
  constexpr int chunk_size = static_cast<int>(sizeof(ChunkT) / sizeof(NumberT));
  auto* const moves = reinterpret_cast<row_move*>(shared_memory());
  const std::int32_t base = *kept.base;
  const std::int32_t n = *kept.n < kept.max ? *kept.n : kept.max;
  const NumberT* const layer = kv.data;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < n; i += static_cast<std::int32_t>(blockDim.x)) {
    moves[i] = {(kv.key(0, sequence, base + kept.rows[i]) - layer) / chunk_size,
                (kv.key(0, sequence, base + i) - layer) / chunk_size};
  }
  __syncthreads();

  const std::int32_t chunks = kv.row_size / chunk_size;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (column >= static_cast<std::int64_t>(kv.n_layers) * 2 * chunks) return;
  const auto part = static_cast<std::int32_t>(column / chunks);  // layer * 2, + 1 for values
  auto* const data = reinterpret_cast<ChunkT*>(kv.data + part / 2 * kv.layer_stride +
                                               static_cast<std::int64_t>(part % 2) * kv.page_size * kv.row_size) +
                     column % chunks;
  constexpr int at_once = compaction_tuning::rows;
  for (std::int32_t first = 0; first < n; first += at_once) {
    ChunkT chunk[at_once];
    for (int k = 0; k < at_once; ++k) {
      if (first + k < n && moves[first + k].from != moves[first + k].to) chunk[k] = data[moves[first + k].from];
    }
    for (int k = 0; k < at_once; ++k) {
      if (first + k < n && moves[first + k].from != moves[first + k].to) data[moves[first + k].to] = chunk[k];
    }
  }
}

template <class ChunkT, class NumberT>
void launch_compaction(const kv_view<NumberT>& kv, const text_batch& texts, const kept_rows& kept,
                       cudaStream_t stream) {
  const std::int64_t columns = static_cast<std::int64_t>(kv.n_layers) * 2 * kv.row_size *
                               static_cast<std::int64_t>(sizeof(NumberT)) / static_cast<std::int64_t>(sizeof(ChunkT));
  constexpr unsigned threads = compaction_tuning::threads;
  launch("compact_rows", compact_rows<ChunkT, NumberT>,
         {.grid = texts.lanes(static_cast<std::int32_t>((columns + threads - 1) / threads)),
          .threads = threads,
          .shared_bytes = static_cast<std::size_t>(kept.max) * sizeof(row_move)},
         stream, kv, texts, kept);
}

//! For each text, moves its kept rows (kept.base + kept.rows[i], i < kept.n) to the slots from kept.base on, in every
//! layer, in one launch. Launches nothing if kept.max is 0.
//!
//! Complexity  reads and writes each of the m rows that change their slot once: 4 * n_layers * m * row_size numbers, in
//!             pieces of 16 or 8 bytes if the size of a row is a multiple of that. No synchronisation, no allocation
//! Pre         the kept rows of a text ascend; the first is 0 or more
template <class NumberT>
void compact(const kv_view<NumberT>& kv, const text_batch& texts, const kept_rows& kept, cudaStream_t stream) {
  if (kept.max < 1) return;
  const std::size_t bytes = static_cast<std::size_t>(kv.row_size) * sizeof(NumberT);
  if (bytes % sizeof(uint4) == 0) {
    launch_compaction<uint4>(kv, texts, kept, stream);
  } else if (bytes % sizeof(uint2) == 0) {
    launch_compaction<uint2>(kv, texts, kept, stream);
  } else {
    launch_compaction<NumberT>(kv, texts, kept, stream);
  }
}

}  // namespace espalier::cuda::detail
