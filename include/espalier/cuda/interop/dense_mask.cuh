// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/interop/conversions.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/interop/dense_mask.hpp"

namespace espalier::cuda::interop {

namespace detail {

// Writes the mask; a block works for a row.
template <class ElementT>
ESPALIER_KERNEL void write_dense_rows(forward_batch_view batch, std::int32_t columns, ElementT* out) {
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  const bool any = batch.n_sequences > 0;
  const batch_sequence s =
      any ? batch.sequences[espalier::interop::sequence_at(batch.sequences, batch.n_sequences, row)] : batch_sequence();
  const espalier::interop::sequence_mask mask(s, batch.mask);
  ElementT* const to = out + static_cast<std::int64_t>(row) * columns;
  for (auto c = static_cast<std::int32_t>(threadIdx.x); c < columns; c += static_cast<std::int32_t>(blockDim.x))
    to[c] = espalier::interop::dense_mask_element<ElementT>(any && mask.sees(row - s.row_begin, c));
}

}  // namespace detail

//! Writes the whole mask of a forward batch on the device, one element for each row and column: 1 or 0 for integers and
//! bool, 0 or minus infinity for other types (float, __half, __nv_bfloat16). Padding rows see the committed rows and
//! the first row of the sequence before them; nothing if the batch has no sequence.
//!
//! Shapes      out [batch.n_rows][columns], on the device
//! Complexity  one launch, writes n_rows * columns elements; no synchronisation
//! Law         rows that are not padding are those of espalier::interop::write_dense_mask
//! Errors      input_error if columns is less than batch.max_context, which bounds the slots of a sequence; cuda_error
template <class ElementT>
void write_dense_mask(const forward_batch_view& batch, std::int32_t columns, ElementT* out, cudaStream_t stream) {
  if (columns < batch.max_context) {
    raise<input_error>("a dense mask of ", columns, " columns cannot show a context of up to ", batch.max_context,
                       " slots.");
  }
  if (batch.n_rows == 0) return;
  launch("write_dense_rows", detail::write_dense_rows<ElementT>,
         {.grid = static_cast<unsigned>(batch.n_rows), .threads = 256}, stream, batch, columns, out);
}

}  // namespace espalier::cuda::interop
