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
#include "espalier/cuda/core/tree_order.cuh"
#include "espalier/cuda/interop/sglang_mask.cuh"
#include "espalier/interop/tensorrt_tree.hpp"

namespace espalier::cuda::interop {

using espalier::interop::tensorrt_tree_shape;

//! espalier::interop::tensorrt_tree in the memory of the device. Kernels get it by value.
//!
//! Shapes      as espalier::interop::tensorrt_tree
struct tensorrt_tree {
  std::int32_t* paths = nullptr;
  std::int32_t* packed_mask = nullptr;
  std::int32_t* position_offsets = nullptr;
};

namespace detail {

template <int Threads, int Items>
struct tensorrt_memory {
  typename cuda::detail::block_tree_order<Threads, Items>::memory order;
  typename cuda::detail::block_tree_order<Threads, Items>::sort_memory sorting;
  std::int32_t is_leaf[Threads * Items];  // [n]
};

// Writes the arrays; a block works for a sequence. A leaf's path has number n if n leaves come before it in preorder.
template <int Threads, int Items>
ESPALIER_KERNEL void write_tensorrt_arrays(forward_batch_view batch, tensorrt_tree_shape shape, tensorrt_tree out,
                                           misfit* found) {
  auto& m = *reinterpret_cast<tensorrt_memory<Threads, Items>*>(shared_memory());
  const batch_sequence s = batch.sequences[blockIdx.x];
  const espalier::interop::sequence_mask mask(s, batch.mask);
  if (threadIdx.x == 0) require_rows(s, shape.max_tokens, found);
  const std::int32_t* const positions = batch.positions + s.row_begin;
  const std::int32_t n = mask.n_rows < shape.max_tokens ? mask.n_rows : shape.max_tokens;
  std::int32_t* const paths = out.paths + blockIdx.x * shape.n_paths();
  std::int32_t* const words = out.packed_mask + blockIdx.x * shape.n_words();
  std::int32_t* const offsets = out.position_offsets + static_cast<std::int64_t>(blockIdx.x) * shape.max_tokens;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < shape.n_paths(); i += Threads)
    paths[i] = -1;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < shape.n_words(); i += Threads)
    words[i] = static_cast<std::int32_t>(mask.word(i / shape.words(), i % shape.words()));
  for (auto row = static_cast<std::int32_t>(threadIdx.x); row < shape.max_tokens; row += Threads)
    offsets[row] = row < n ? positions[row] - positions[0] : 0;

  cuda::detail::block_tree_order<Threads, Items> block(m.order, m.sorting, n);
  block.each([&](int row) {
    m.order.parent[row] = mask.parent(row);
    m.is_leaf[row] = 1;
  });
  __syncthreads();
  block.each([&](int row) {
    if (row == 0) return;
    atomicExch(&m.is_leaf[m.order.parent[row]], 0);
    if (m.order.parent[row] < m.order.parent[row - 1]) report(found, misfit::kind::wrong_order, s.sequence, row);
    if (positions[row] - positions[0] >= shape.max_path) report(found, misfit::kind::long_path, s.sequence, row);
  });
  __syncthreads();
  block.each([&](int row) { m.order.below[row] = m.is_leaf[row]; });
  block.preorder(false, 0);
  block.each([&](int row) {
    if (m.is_leaf[row] == 0) return;
    for (std::int32_t r = row; r >= 0; r = m.order.parent[r]) {
      const std::int32_t depth = positions[r] - positions[0];
      if (depth < shape.max_path) paths[static_cast<std::int64_t>(m.order.rank[row]) * shape.max_path + depth] = r;
    }
  });
}

template <int Threads, int Items>
void launch_tensorrt_arrays(const forward_batch_view& batch, const tensorrt_tree_shape& shape, const tensorrt_tree& out,
                            cudaStream_t stream, misfit* found) {
  if (batch.n_sequences == 0) return;
  launch("write_tensorrt_arrays", write_tensorrt_arrays<Threads, Items>,
         {.grid = static_cast<unsigned>(batch.n_sequences),
          .threads = Threads,
          .shared_bytes = sizeof(tensorrt_memory<Threads, Items>)},
         stream, batch, shape, out, found);
}

}  // namespace detail

//! Writes TensorRT-LLM's arrays of the trees of a forward batch, on the device.
//!
//! Complexity  one launch, a block a sequence; writes the arrays once. No synchronisation
//! Law         the same arrays as espalier::interop::write_tensorrt_tree
//! Errors      a misfit in `found`, if that is not null, for rows that are not in breadth-first order, a sequence of
//!             more rows than max_tokens, and a path beyond max_path, of which the beginning is written; input_error
//!             for a shape that its check() refuses, if sequences have more rows than max_tokens on average, or
//!             if max_tokens is beyond 1088; cuda_error
inline void write_tensorrt_tree(const forward_batch_view& batch, const tensorrt_tree_shape& shape,
                                const tensorrt_tree& out, cudaStream_t stream, misfit* found = nullptr) {
  shape.check();
  detail::require_rows("TensorRT-LLM's tree", batch, shape.max_tokens);
  if (shape.max_tokens <= 96) {
    detail::launch_tensorrt_arrays<96, 1>(batch, shape, out, stream, found);
  } else if (shape.max_tokens <= 544) {
    detail::launch_tensorrt_arrays<544, 1>(batch, shape, out, stream, found);
  } else if (shape.max_tokens <= 1088) {
    detail::launch_tensorrt_arrays<544, 2>(batch, shape, out, stream, found);
  } else {
    raise<input_error>("TensorRT-LLM's tree has ", shape.max_tokens,
                       " tokens, but at most 1088 can be put on paths on the device.");
  }
}

}  // namespace espalier::cuda::interop
