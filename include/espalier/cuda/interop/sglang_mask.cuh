// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/interop/conversions.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/interop/misfit.cuh"
#include "espalier/cuda/interop/packed_bytes.cuh"
#include "espalier/interop/sglang_mask.hpp"

namespace espalier::cuda::interop {

using espalier::interop::sglang_mask_layout;

namespace detail {

// Reports a sequence of more than n rows.
__device__ inline void require_rows(const batch_sequence& s, std::int32_t n, misfit* found) {
  const std::int32_t rows = s.row_end - s.row_begin;
  if (rows > n) report(found, misfit::kind::too_many_rows, s.sequence, rows);
}

struct sglang_mask_format {
  sglang_mask_layout layout;
  const batch_sequence* sequences;  // [n_sequences]
  std::int32_t n_sequences;
  misfit* found;

  ESPALIER_HOST_DEVICE std::int64_t bytes(const espalier::interop::sequence_mask& mask) const {
    return layout.bytes(mask.prefix);
  }
  ESPALIER_HOST_DEVICE std::uint8_t byte(const espalier::interop::sequence_mask& mask, std::int64_t i) const {
    return layout.byte(mask, i);
  }
  __device__ void began(std::int32_t s, std::int64_t) const {
    if (s < n_sequences) require_rows(sequences[s], layout.n, found);
  }
};

// Checks that sequences have at most n rows on average. In a batch that was compiled without packing, all sequences
// have equally many rows.
//
// Errors      input_error if they have more
inline void require_rows(const char* whose, const forward_batch_view& batch, std::int32_t n) {
  if (batch.n_rows > static_cast<std::int64_t>(n) * batch.n_sequences) {
    raise<input_error>(whose, " of ", n, " rows has no room for the ", batch.n_rows, " rows of ", batch.n_sequences,
                       " sequences.");
  }
}

}  // namespace detail

//! Largest number of bytes of SGLang's masks for a batch of these shapes.
inline std::int64_t sglang_mask_capacity(const forward_batch_view& batch, const sglang_mask_layout& layout) {
  return layout.bytes(batch.max_context) * batch.n_sequences;
}

//! Writes SGLang's tree mask of a forward batch on the device. Rows that the tree does not have see the committed rows
//! and the root.
//!
//! Shapes      out [capacity], on the device, laid out as by espalier::interop::write_sglang_mask
//! Complexity  one launch, writes the bytes of the mask; no synchronisation
//! Law         the same bytes as espalier::interop::write_sglang_mask
//! Errors      a misfit in `found`, if that is not null, for a sequence with more rows than layout.n: only its first
//!             layout.n rows are written; input_error if sequences have more than layout.n rows on average, if layout.n
//!             is not from 1 to 2^15 (to 32 for a bit-packed mask), or if capacity is less than sglang_mask_capacity;
//!             cuda_error
inline void write_sglang_mask(const forward_batch_view& batch, const sglang_mask_layout& layout, std::uint8_t* out,
                              std::int64_t capacity, cudaStream_t stream, misfit* found = nullptr) {
  layout.check();
  detail::require_rows("SGLang's mask", batch, layout.n);
  const std::int64_t needed = sglang_mask_capacity(batch, layout);
  espalier::interop::detail::require_room("SGLang's mask", static_cast<std::size_t>(capacity), needed);
  detail::launch_packed_bytes("write_sglang_mask", batch,
                              detail::sglang_mask_format{layout, batch.sequences, batch.n_sequences, found}, out,
                              capacity, needed, stream);
}

}  // namespace espalier::cuda::interop
