// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/interop/conversions.cu
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/interop/packed_bytes.cuh"
#include "espalier/interop/flashinfer_mask.hpp"

namespace espalier::cuda::interop {

namespace detail {

struct flashinfer_format {
  std::int32_t* indptr;

  ESPALIER_HOST_DEVICE std::int64_t bytes(const espalier::interop::sequence_mask& mask) const {
    return espalier::interop::flashinfer_mask_bytes(mask.n_rows, mask.prefix);
  }
  ESPALIER_HOST_DEVICE std::uint8_t byte(const espalier::interop::sequence_mask& mask, std::int64_t i) const {
    return espalier::interop::flashinfer_mask_byte(mask, i);
  }
  ESPALIER_HOST_DEVICE void began(std::int32_t sequence, std::int64_t begin) const {
    indptr[sequence] = static_cast<std::int32_t>(begin);
  }
};

}  // namespace detail

//! Largest number of bytes of FlashInfer's packed masks for a batch of these shapes.
inline std::int64_t flashinfer_mask_capacity(const forward_batch_view& batch) {
  return static_cast<std::int64_t>(batch.n_rows) * batch.max_context / 8 + batch.n_sequences;
}

//! Writes FlashInfer's packed custom mask of a forward batch on the device; padding rows have no bits.
//!
//! Shapes      on the device: packed [capacity]; indptr [n_sequences + 1], in bytes
//! Complexity  one launch, writes rows * slots / 8 bytes; no synchronisation
//! Law         the same bytes as espalier::interop::write_flashinfer_mask
//! Errors      input_error if capacity is less than flashinfer_mask_capacity(batch), or if the latter is more than
//!             2^31 - 1; cuda_error
inline void write_flashinfer_mask(const forward_batch_view& batch, std::uint8_t* packed, std::int64_t capacity,
                                  std::int32_t* indptr, cudaStream_t stream) {
  const std::int64_t needed = flashinfer_mask_capacity(batch);
  espalier::interop::detail::require_room("FlashInfer's packed mask", static_cast<std::size_t>(capacity), needed);
  if (needed > INT32_MAX) {
    raise<input_error>("FlashInfer's packed mask may take ", needed, " bytes, more than mask_indptr can say.");
  }
  detail::launch_packed_bytes("write_flashinfer_mask", batch, detail::flashinfer_format{indptr}, packed, capacity,
                              needed, stream);
}

}  // namespace espalier::cuda::interop
