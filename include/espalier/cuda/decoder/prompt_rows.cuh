// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/batch_decoder.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/tree_compile.cuh"

namespace espalier::cuda::detail {

// Chunks, to be passed to a kernel by value.
struct some_chunks {
  static constexpr std::int32_t max = 8;
  prompt_chunk of[max];
};

// Writes the chunks to the memory of the device; one thread works for a chunk.
template <class ChunkT>
ESPALIER_KERNEL void set_chunks(ChunkT* to, some_chunks some) {
  to[threadIdx.x] = some.of[threadIdx.x];
}

inline constexpr unsigned chunk_threads = 128;

// Writes the rows of chunks, and padding, into a pass from row `first` on; one block works for a row. A token of a
// chunk sees itself and the tokens before it. Chunk k is sequence texts.n + k of the pass.
template <class ChunkT>
ESPALIER_KERNEL void write_chunks(batch_arrays to, text_batch texts, const ChunkT* chunks, std::int32_t n_chunks,
                                  std::int32_t first, std::int32_t mask_begin, std::int32_t words) {
  const auto i = static_cast<std::int32_t>(blockIdx.x), row = first + i;
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  std::int32_t of = -1;
  for (std::int32_t k = 0; k < n_chunks; ++k) {
    const prompt_chunk c = chunks[k];
    if (row >= c.row && row < c.row + c.n) of = k;
    if (i == 0 && thread == 0) {
      const std::int32_t sequence = c.place < 0 ? 0 : texts.first_sequence + c.place;
      const std::int32_t begin = c.n > 0 ? c.row : first;
      to.sequences[texts.n + k] = {sequence, begin, begin + c.n, c.first, mask_begin + (begin - first) * words, words};
    }
  }
  const prompt_chunk c = of < 0 ? prompt_chunk() : chunks[of];
  const std::int32_t at = row - c.row;
  for (std::int32_t word = thread; word < words; word += static_cast<std::int32_t>(chunk_threads)) {
    const std::int32_t seen = of < 0 ? 0 : at + 1 - 32 * word;
    to.mask[mask_begin + i * words + word] = seen >= 32 ? ~0U : seen > 0 ? (1U << seen) - 1U : 0U;
  }
  if (thread != 0) return;
  to.tokens[row] = of < 0 ? 0 : texts.text(c.place).tokens[c.first + at];
  to.positions[row] = of < 0 ? 0 : c.first + at;
  to.slots[row] = of < 0 ? -1 : c.first + at;
  to.sequence_of[row] = of < 0 ? -1 : texts.n + of;
}

// The rows of a round's pass that read prompts; they come after the rows of trees. Nobody reads their logits.
class prompt_rows {
 public:
  prompt_rows() : chunks_(some_chunks::max) {}

  // Number of chunks that a pass with n_rows rows for prompts may have.
  static std::int32_t max_chunks(std::int32_t n_rows) { return (std::min)(n_rows, some_chunks::max); }

  // Sets the chunks that the next pass reads. Pre: they are at most some_chunks::max, in the order of their rows
  void set(std::span<const prompt_chunk> chunks, cudaStream_t stream) const {
    some_chunks some{};
    std::copy(chunks.begin(), chunks.end(), some.of);
    launch("set_chunks", set_chunks<prompt_chunk>, {.threads = some_chunks::max}, stream, chunks_.data(), some);
  }

  // Adds n_rows rows, padding included, to a batch of trees, for the first n_chunks chunks; empty ones may be among
  // them. Returns the batch.
  forward_batch_view add(const forward_batch_view& trees, const tree_compiler& compiler, const text_batch& texts,
                         std::int32_t n_rows, std::int32_t n_chunks, cudaStream_t stream) const {
    forward_batch_view batch = trees;
    batch.n_rows += n_rows;
    batch.n_sequences += n_chunks;
    launch("write_chunks", write_chunks<prompt_chunk>,
           {.grid = static_cast<unsigned>(n_rows), .threads = chunk_threads}, stream, compiler.arrays(), texts,
           chunks_.data(), n_chunks, trees.n_rows, compiler.spare_mask(), mask_words(n_rows));
    return batch;
  }

  // The chunks, in memory of the device.
  const prompt_chunk* chunks() const { return chunks_.data(); }

 private:
  device_array<prompt_chunk> chunks_;
};

}  // namespace espalier::cuda::detail
