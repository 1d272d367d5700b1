// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/interop/conversions.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/interop/sglang_mask.cuh"
#include "espalier/interop/sequence_mask.hpp"
#include "espalier/interop/sglang_tree.hpp"

namespace espalier::cuda::interop {

using espalier::interop::tree_numbering;

//! espalier::interop::sglang_tree in the memory of the device. Kernels get it by value.
//!
//! Shapes      all [n_sequences][n]
template <class IntegerT>
struct sglang_tree {
  IntegerT* positions = nullptr;
  IntegerT* retrive_index = nullptr;
  IntegerT* retrive_next_token = nullptr;
  IntegerT* retrive_next_sibling = nullptr;
};

namespace detail {

// Writes the arrays; a block works for a sequence. Its shared memory holds the parent, the first and the last child of
// each row.
template <class IntegerT>
ESPALIER_KERNEL void write_sglang_links(forward_batch_view batch, std::int32_t n, sglang_tree<IntegerT> out,
                                        tree_numbering numbering, misfit* found) {
  const batch_sequence s = batch.sequences[blockIdx.x];
  if (threadIdx.x == 0) require_rows(s, n, found);
  const espalier::interop::sequence_mask mask(s, batch.mask);
  auto* const parent = reinterpret_cast<std::int32_t*>(shared_memory());
  std::int32_t* const first = parent + n;
  std::int32_t* const last = first + n;
  const auto begin = static_cast<std::int32_t>(threadIdx.x), step = static_cast<std::int32_t>(blockDim.x);
  const std::int32_t there = mask.n_rows < n ? mask.n_rows : n;
  for (std::int32_t row = begin; row < there; row += step) {
    parent[row] = mask.parent(row);
    first[row] = n;
    last[row] = -1;
  }
  __syncthreads();
  for (std::int32_t row = begin; row < there; row += step) {
    if (row == 0) continue;
    atomicMin(&first[parent[row]], row);
    atomicMax(&last[parent[row]], row);
  }
  __syncthreads();
  for (std::int32_t row = begin; row < n; row += step) {
    const std::int64_t to = static_cast<std::int64_t>(blockIdx.x) * n + row;
    const bool is_there = row < there;
    const bool is_relative = numbering == tree_numbering::of_tree;
    out.positions[to] =
        batch.positions[s.row_begin + (is_there ? row : 0)] - (is_relative ? batch.positions[s.row_begin] : 0);
    out.retrive_index[to] = static_cast<IntegerT>(is_relative ? row : to);
    out.retrive_next_token[to] = is_there && first[row] < n ? first[row] : -1;
    std::int32_t next = -1;
    if (is_there && row > 0 && last[parent[row]] != row) {
      for (next = row + 1; parent[next] != parent[row];)
        ++next;
    }
    out.retrive_next_sibling[to] = next;
  }
}

}  // namespace detail

//! Writes SGLang's arrays of the trees of a forward batch, on the device.
//!
//! Complexity  one launch; a row looks at its mask words and at the rows up to its next sibling. No synchronisation
//! Law         the same arrays as espalier::interop::write_sglang_tree
//! Errors      a misfit in `found`, if that is not null, for a sequence with more rows than n: only its first n rows
//!             are written; input_error if sequences have more rows than n on average, or n is beyond 4096; cuda_error
template <class IntegerT>
void write_sglang_tree(const forward_batch_view& batch, std::int32_t n, const sglang_tree<IntegerT>& out,
                       cudaStream_t stream, tree_numbering numbering = tree_numbering::of_batch,
                       misfit* found = nullptr) {
  detail::require_rows("SGLang's tree", batch, n);
  if (n > 4096) raise<input_error>("SGLang's tree has ", n, " rows, but at most 4096 can be linked on the device.");
  if (batch.n_sequences == 0) return;
  launch("write_sglang_links", detail::write_sglang_links<IntegerT>,
         {.grid = static_cast<unsigned>(batch.n_sequences),
          .threads = n <= 128 ? 128U : 512U,
          .shared_bytes = 3 * static_cast<std::size_t>(n) * sizeof(std::int32_t)},
         stream, batch, n, out, numbering, found);
}

}  // namespace espalier::cuda::interop
