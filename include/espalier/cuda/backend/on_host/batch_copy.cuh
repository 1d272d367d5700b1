// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/pinned_array.cuh"

namespace espalier::cuda::detail {

// A batch of the device in memory of the host that both can reach. By value into kernels.
//
// Shapes: as forward_batch_view; mask [rows][words], from each row's first scratch slot on; too_wide [rows]: it sees
// more
struct batch_copy_view {
  token_id* tokens;
  std::int32_t* positions;
  std::int32_t* slots;
  std::int32_t* sequence_of;
  std::int32_t* outputs;
  std::int32_t* too_wide;
  batch_sequence* sequences;
  std::uint32_t* mask;
  std::int32_t words;
};

inline constexpr int bring_batch_threads = 128;

// One block a row.
template <class UnusedT = void>
ESPALIER_KERNEL void bring_batch(forward_batch_view from, batch_copy_view to) {
  const auto row = static_cast<std::int32_t>(blockIdx.x), thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t s = from.sequence_of[row];
  if (thread == 0) {
    to.tokens[row] = from.tokens[row];
    to.positions[row] = from.positions[row];
    to.slots[row] = from.slots[row];
    to.sequence_of[row] = s;
    to.too_wide[row] = 0;
    if (row < from.n_outputs) to.outputs[row] = from.outputs != nullptr ? from.outputs[row] : row;
  }
  if (row == 0) {
    for (std::int32_t i = thread; i < from.n_sequences; i += bring_batch_threads)
      to.sequences[i] = from.sequences[i];
  }
  if (s < 0) return;
  __syncthreads();
  const batch_sequence sequence = from.sequences[s];
  const std::uint32_t* mask =
      from.mask + sequence.mask_begin + static_cast<std::int64_t>(row - sequence.row_begin) * sequence.mask_words;
  std::uint32_t* copy = to.mask + static_cast<std::int64_t>(row) * to.words;
  const std::int32_t most = sequence.mask_words > to.words ? sequence.mask_words : to.words;
  for (std::int32_t word = thread; word < most; word += bring_batch_threads) {
    const std::uint32_t bits = word < sequence.mask_words ? mask[word] : 0U;
    if (word < to.words) {
      copy[word] = bits;
    } else if (bits != 0) {
      to.too_wide[row] = 1;
    }
  }
}

class batch_copy {
 public:
  batch_copy(std::int32_t max_rows, std::int32_t words)
      : rows_(max_rows),
        words_(words),
        numbers_(6 * static_cast<std::size_t>(max_rows)),
        sequences_(static_cast<std::size_t>(max_rows)),
        mask_(static_cast<std::size_t>(max_rows) * static_cast<std::size_t>(words)) {}

  batch_copy_view view() const {
    std::int32_t* n = numbers_.data();
    return {
        n,     n + rows_, n + 2 * rows_, n + 3 * rows_, n + 4 * rows_, n + 5 * rows_, sequences_.data(), mask_.data(),
        words_};
  }

  // Pre: at most as many rows, sequences and outputs as rows there are; outputs no more than rows.
  void bring(const forward_batch_view& batch, cudaStream_t stream) const {
    launch("bring_batch", bring_batch<>, {.grid = static_cast<unsigned>(batch.n_rows), .threads = bring_batch_threads},
           stream, batch, view());
  }

 private:
  std::int32_t rows_;
  std::int32_t words_;
  pinned_array<std::int32_t> numbers_;
  pinned_array<batch_sequence> sequences_;
  pinned_array<std::uint32_t> mask_;
};

}  // namespace espalier::cuda::detail
