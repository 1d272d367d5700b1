// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"

namespace espalier::cuda::detail {

//! The keys that a row sees, numbered by position: the slots of the prefix, then the columns that its mask shows, which
//! are its ancestors from the root on and the row itself. A token has the same number as in the row's text, wherever
//! its key is stored.
//!
//! All functions are called by a whole warp.
struct row_keys {
  static constexpr std::int32_t block = 64;  // keys that are summed together

  batch_sequence sequence;
  const std::uint32_t* mask;  // mask of the row
  std::int32_t n_words;
  std::int32_t n;  // number of keys

  //! Pre         the row is not padding
  __device__ row_keys(const forward_batch_view& batch, std::int32_t row, std::int32_t seen_words)
      : sequence(batch.sequences[batch.sequence_of[row]]),
        mask(batch.mask + sequence.mask_begin + (row - sequence.row_begin) * sequence.mask_words),
        n_words(sequence.mask_words < seen_words ? sequence.mask_words : seen_words) {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    std::int32_t columns = 0;
    for (std::int32_t word = lane; word < n_words; word += 32)
      columns += __popc(mask[word]);
    for (int step = 16; step > 0; step /= 2)
      columns += __shfl_xor_sync(0xFFFFFFFFU, columns, step);
    n = sequence.prefix + columns;
  }

  __device__ std::int32_t n_blocks() const { return (n + block - 1) / block; }

  //! Writes the positions in the cache of the keys of block b: to[i] is the position of key 64 b + i as kv.row()
  //! counts, -1 beyond the last key.
  template <class NumberT>
  __device__ void list(const kv_view<NumberT>& kv, std::int32_t b, std::int32_t* to) const {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    const std::int32_t first = block * b;
    for (std::int32_t i = lane; i < block; i += 32)
      to[i] = first + i < sequence.prefix ? first + i : -1;
    __syncwarp();
    // The j-th column that the mask shows is key prefix + j.
    std::int32_t before = sequence.prefix - first;
    for (std::int32_t at = 0; at < n_words && before < block; at += 32) {
      std::uint32_t bits = at + lane < n_words ? mask[at + lane] : 0;
      const std::int32_t own = __popc(bits);
      std::int32_t up_to = own;
      for (int step = 1; step < 32; step *= 2) {
        const std::int32_t lower = __shfl_up_sync(0xFFFFFFFFU, up_to, static_cast<unsigned>(step));
        if (lane >= step) up_to += lower;
      }
      std::int32_t i = before + up_to - own;
      if (i + own > 0) {
        for (; bits != 0 && i < block; ++i, bits &= bits - 1) {
          if (i >= 0) to[i] = sequence.prefix + 32 * (at + lane) + __ffs(static_cast<int>(bits)) - 1;
        }
      }
      before += __shfl_sync(0xFFFFFFFFU, up_to, 31);
    }
    __syncwarp();
    for (std::int32_t i = lane; i < block; i += 32) {
      if (to[i] >= 0) to[i] = static_cast<std::int32_t>(kv.row(sequence.sequence, to[i]));
    }
    __syncwarp();
  }
};

}  // namespace espalier::cuda::detail
