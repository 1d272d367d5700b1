// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/llama/llama_backend.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/cuda/concepts/kv_store.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/tree_compile.cuh"

namespace espalier::cuda {

namespace detail {

// The arrays of one chain in the memory of the device. Shapes: tokens, positions, sequence_of [rows]; mask
// [rows][words]
struct chain_memory {
  token_id* tokens;
  std::int32_t* positions;  // positions, which are also the cache slots
  std::int32_t* sequence_of;
  batch_sequence* sequence;
  std::uint32_t* mask;
  std::int32_t words;
  std::int32_t id;  // number of the sequence in the store
};

inline constexpr int chain_threads = 128;

// Writes the batch of a chain; a block works for a row. The rows are the tokens from `first` on, and each sees itself
// and the tokens before it.
template <class UnusedT = void>
ESPALIER_KERNEL void write_chain(chain_memory to, const token_id* tokens, std::int32_t first) {
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  for (auto word = static_cast<std::int32_t>(threadIdx.x); word < to.words; word += chain_threads) {
    const std::int32_t seen = row + 1 - 32 * word;
    to.mask[static_cast<std::int64_t>(row) * to.words + word] = seen >= 32 ? ~0U : seen > 0 ? (1U << seen) - 1U : 0U;
  }
  if (threadIdx.x != 0) return;
  to.tokens[row] = tokens[first + row];
  to.positions[row] = first + row;
  to.sequence_of[row] = 0;
  if (row == 0) *to.sequence = {to.id, 0, static_cast<std::int32_t>(gridDim.x), first, 0, to.words};
}

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

// The rows of a round's pass that read prompts; they come after the rows of trees, and give no logits.
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

  // Adds n_rows rows, padding included, to a batch of trees, for the first n_chunks chunks; empty chunks may be among
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

}  // namespace detail

//! The reading of a text into a cache on the device, chunk by chunk: token i of the text gets slot i.
//!
//! Complexity  one pass of the backend and one launch for each `chunk` tokens, or for as many as the backend's
//!             max_rows() if that is fewer; allocates when a pass has more rows than any before. No synchronisation
//!             otherwise; a graph cannot capture it
//! Errors      input_error if the text does not fit into the cache; the errors of the backend
class prefill {
 public:
  //! Rows of one pass, at most: enough to keep the device's arithmetic busy while the weights come from memory.
  static constexpr std::int32_t chunk = 512;

  //! Forwards tokens first to end - 1 of the text. Calls after_pass(first, n) once each pass is enqueued; rows 0 to
  //! n - 1 of that pass are the n tokens from `first` on.
  //!
  //! Pre         rows 0 to first - 1 of the sequence are in the cache; the device has tokens 0 to end - 1 of the text
  template <class BackendT, class KVStoreT, class AfterPassT>
  void run(BackendT& backend, KVStoreT& kv, std::int32_t sequence, text_view text, std::int32_t first, std::int32_t end,
           cudaStream_t stream, const AfterPassT& after_pass) {
    require_room(kv, end);
    while (first < end) {
      const forward_batch_view batch = open(kv, sequence, text, first, end, backend.max_rows(), stream);
      backend.forward(kv, batch, stream);
      after_pass(first, batch.n_rows);
      first += batch.n_rows;
    }
  }

  template <class BackendT, class KVStoreT>
  void run(BackendT& backend, KVStoreT& kv, std::int32_t sequence, text_view text, std::int32_t first, std::int32_t end,
           cudaStream_t stream) {
    run(backend, kv, sequence, text, first, end, stream, [](std::int32_t, std::int32_t) {});
  }

  //! Forwards the rows of a draft head that a text of n_tokens tokens needs before a round, which itself makes the last
  //! n_behind rows. Row i is token i + 1's. Of the first n_known tokens, the cache may lack the last n_behind rows.
  //!
  //! Pre         the states of the tokens before the rows were read
  template <class HeadT, class ContextT>
  void run_head(HeadT& head, ContextT& context, std::int32_t place, text_view text, std::int32_t n_tokens,
                std::int32_t n_known, std::int32_t n_behind, cudaStream_t stream) {
    const std::int32_t end = (std::max)(0, (std::min)(n_tokens, head.max_positions()) - 1 - n_behind);
    const std::int32_t first = (std::min)((std::max)(0, n_known - n_behind), end);
    run(head, context, place, {text.tokens + 1, text.state, text.capacity - 1}, first, end, stream);
  }

  //! Returns the next pass of run(), which the caller makes: over the tokens from number `first` on, as many as there
  //! are before `end`, but at most max_rows, at most `chunk`, and at most as many as rows_of_pass() allows. The next
  //! call overwrites the batch, in the order of the stream.
  //!
  //! Pre         first < end, and as for run()
  template <class KVStoreT>
  forward_batch_view open(KVStoreT& kv, std::int32_t sequence, text_view text, std::int32_t first, std::int32_t end,
                          std::int32_t max_rows, cudaStream_t stream) {
    require_room(kv, end);
    const std::int32_t n = rows_of_pass(kv, (std::min)({end - first, chunk, max_rows}));
    reserve(n);
    kv.ensure(sequence, first + n, stream);
    return write(sequence, text, first, n, stream);
  }

 private:
  template <class KVStoreT>
  static void require_room(const KVStoreT& kv, std::int32_t end) {
    if (end > kv.capacity())
      raise<input_error>("a text of ", end, " tokens does not fit a cache of ", kv.capacity(), ".");
  }

  void reserve(std::int32_t rows) {
    if (rows <= rows_) return;
    const auto n = static_cast<std::size_t>(rows);
    numbers_ = device_array<std::int32_t>(3 * n);
    mask_ = device_array<std::uint32_t>(n * static_cast<std::size_t>(mask_words(rows)));
    sequence_ = device_array<batch_sequence>(1);
    rows_ = rows;
  }

  forward_batch_view write(std::int32_t sequence, text_view text, std::int32_t first, std::int32_t n,
                           cudaStream_t stream) const {
    detail::chain_memory to{};
    to.tokens = numbers_.data();
    to.positions = to.tokens + rows_;
    to.sequence_of = to.positions + rows_;
    to.sequence = sequence_.data();
    to.mask = mask_.data();
    to.words = mask_words(n);
    to.id = sequence;
    launch("write_chain", detail::write_chain<>, {.grid = static_cast<unsigned>(n), .threads = detail::chain_threads},
           stream, to, text.tokens, first);
    forward_batch_view batch;
    batch.n_rows = n;
    batch.n_sequences = 1;
    batch.max_context = first + n + 1;
    batch.tokens = to.tokens;
    batch.positions = batch.slots = to.positions;
    batch.sequence_of = to.sequence_of;
    batch.sequences = to.sequence;
    batch.mask = to.mask;
    return batch;
  }

  std::int32_t rows_ = 0;
  device_array<std::int32_t> numbers_;  // [3][rows]
  device_array<std::uint32_t> mask_;
  device_array<batch_sequence> sequence_;
};

}  // namespace espalier::cuda
