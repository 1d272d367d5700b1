// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/model/parallel/rank_part.hpp"

namespace espalier::cuda::detail {

// Rows whose columns are divided over ranks, as they travel: a block for each rank, one after another, all of one size,
// each on 256 bytes. A block is [rows][columns of the rank].
template <class NumberT>
struct rank_blocks {
  NumberT* data = nullptr;
  espalier::detail::rank_division columns;
  std::int64_t stride = 0;  // numbers from one block to the next

  rank_blocks() = default;
  rank_blocks(NumberT* blocks, const espalier::detail::rank_division& division, std::int32_t rows)
      : data(blocks), columns(division) {
    std::int64_t widest = 0;
    for (std::int32_t r = 0; r < division.ranks; ++r)
      widest = widest > division.size(r) ? widest : division.size(r);
    constexpr std::int64_t granule = 256 / sizeof(NumberT);
    stride = (rows * widest + granule - 1) / granule * granule;
  }

  ESPALIER_HOST_DEVICE NumberT* of(std::int32_t rank) const { return data + rank * stride; }
  std::size_t numbers() const { return static_cast<std::size_t>(stride * columns.ranks); }
  // Of one block.
  std::size_t bytes() const { return static_cast<std::size_t>(stride) * sizeof(NumberT); }
};

inline constexpr int block_copy_threads = 256;

// Calls use(column of the rows, place in the rank's block) for the columns of row blockIdx.x that `rank` has.
template <class UseT>
__device__ void each_column(const espalier::detail::rank_division& columns, std::int32_t rank, const UseT& use) {
  const std::int32_t begin = columns.begin(rank), width = columns.size(rank);
  const std::int64_t at = std::int64_t{blockIdx.x} * width;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < width; i += block_copy_threads)
    use(begin + i, at + i);
}

// One block of threads a row and rank.
template <class NumberT>
ESPALIER_KERNEL void unpack_blocks(rank_blocks<NumberT> blocks, NumberT* rows) {
  const auto rank = static_cast<std::int32_t>(blockIdx.y);
  const NumberT* from = blocks.of(rank);
  NumberT* to = rows + std::int64_t{blockIdx.x} * blocks.columns.n;
  each_column(blocks.columns, rank, [&](std::int32_t column, std::int64_t at) { to[column] = from[at]; });
}

// Likewise, from rank `first` on.
template <class NumberT>
ESPALIER_KERNEL void pack_blocks(const NumberT* rows, rank_blocks<NumberT> blocks, std::int32_t first) {
  const std::int32_t rank = first + static_cast<std::int32_t>(blockIdx.y);
  const NumberT* from = rows + std::int64_t{blockIdx.x} * blocks.columns.n;
  NumberT* to = blocks.of(rank);
  each_column(blocks.columns, rank, [&](std::int32_t column, std::int64_t at) { to[at] = from[column]; });
}

// One block of threads a row: the own block becomes the own columns of the rows, and what each rank adds to them, in
// the order of ranks. In `parts`, every block is of the own columns.
template <class UnusedT = void>
ESPALIER_KERNEL void add_blocks(const float* rows, rank_blocks<float> parts, std::int32_t own, float* to) {
  const float* from = rows + std::int64_t{blockIdx.x} * parts.columns.n;
  each_column(parts.columns, own, [&](std::int32_t column, std::int64_t at) {
    float sum = from[column];
    for (std::int32_t r = 0; r < parts.columns.ranks; ++r)
      sum += parts.of(r)[at];
    to[at] = sum;
  });
}

// Blocks to rows [n][columns.n], and back: of all ranks, or of one.
template <class NumberT>
void unpack(const rank_blocks<NumberT>& blocks, int n, NumberT* rows, cudaStream_t stream) {
  if (n == 0) return;
  launch("unpack_blocks", unpack_blocks<NumberT>,
         {.grid = dim3(static_cast<unsigned>(n), static_cast<unsigned>(blocks.columns.ranks)),
          .threads = block_copy_threads},
         stream, blocks, rows);
}
template <class NumberT>
void pack(const NumberT* rows, int n, const rank_blocks<NumberT>& blocks, cudaStream_t stream) {
  launch("pack_blocks", pack_blocks<NumberT>,
         {.grid = dim3(static_cast<unsigned>(n), static_cast<unsigned>(blocks.columns.ranks)),
          .threads = block_copy_threads},
         stream, rows, blocks, 0);
}
template <class NumberT>
void pack_own(const NumberT* rows, int n, const rank_blocks<NumberT>& blocks, int own, cudaStream_t stream) {
  launch("pack_blocks", pack_blocks<NumberT>, {.grid = static_cast<unsigned>(n), .threads = block_copy_threads}, stream,
         rows, blocks, own);
}
inline void add(const float* rows, int n, const rank_blocks<float>& parts, int own, float* to, cudaStream_t stream) {
  launch("add_blocks", add_blocks<>, {.grid = static_cast<unsigned>(n), .threads = block_copy_threads}, stream, rows,
         parts, own, to);
}

}  // namespace espalier::cuda::detail
