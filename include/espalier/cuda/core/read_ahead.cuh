// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "espalier/cuda/core/ptx.cuh"

namespace espalier::cuda {

//! The first bytes of each row of a matrix that a later kernel reads and nobody writes. An earlier kernel that leaves
//! most of the device idle launches further thread blocks, which ask for these bytes to be brought into the
//! second-level cache. These blocks compute nothing with the bytes, so no bit of a result depends on the request.
//!
//! The first bytes of rows are taken because the blocks of a product begin with the first columns of their rows.
struct read_ahead {
  const void* matrix = nullptr;
  std::int64_t row_bytes = 0;
  std::uint32_t piece_bytes = 0;  //!< bytes of each row, a multiple of 16
  std::uint32_t n_rows = 0;       //!< number of rows; 0: nothing is read ahead

  static constexpr std::uint32_t rows_a_block = 48;
  static constexpr std::uint32_t most_blocks = 128;  // the most thread blocks that ask for bytes; almost
                                                     // every multiprocessor then has one

  //! Chooses the first bytes of each row, most_bytes in all at most, of a matrix that is stored row by row. Nothing is
  //! read ahead if its rows are not aligned to 16 bytes, or if the piece of each row would be less than 128 bytes, a
  //! line of the cache.
  static read_ahead of(const void* matrix, std::size_t n_rows, std::size_t row_bytes, std::size_t most_bytes) {
    if (row_bytes % 16 != 0 || reinterpret_cast<std::uintptr_t>(matrix) % 16 != 0) return {};
    const std::size_t piece = std::min(row_bytes, most_bytes / std::max<std::size_t>(n_rows, 1)) / 128 * 128;
    if (piece == 0) return {};
    return {matrix, static_cast<std::int64_t>(row_bytes), static_cast<std::uint32_t>(piece),
            static_cast<std::uint32_t>(n_rows)};
  }

  //! The grid of a kernel that needs n by `high` blocks for its own work. Further blocks in x ask for the bytes.
  dim3 grid_beside(int n, unsigned high = 1) const {
    const unsigned asking = std::min((n_rows + rows_a_block - 1) / rows_a_block, most_blocks);
    return dim3(static_cast<unsigned>(n) + (asking + high - 1) / high, high);
  }

  //! Called by all threads at the beginning of a kernel with the grid of grid_beside(n). Blocks from n on ask for the
  //! bytes, and every block waits for the kernel before it in the stream (ptx::await_previous). Returns true if the
  //! block has work of its own.
  __device__ bool ask_beside(std::int32_t n) const {
    const auto own = static_cast<unsigned>(n);
    const bool asks = blockIdx.x >= own;
    if (asks) {
      const unsigned block = (blockIdx.x - own) * gridDim.y + blockIdx.y, n_blocks = (gridDim.x - own) * gridDim.y;
      for (std::uint32_t row = threadIdx.x * n_blocks + block; row < n_rows; row += n_blocks * blockDim.x)
        ptx::ask_for(static_cast<const unsigned char*>(matrix) + row * row_bytes, piece_bytes);
    }
    ptx::await_previous();
    return !asks;
  }
};

}  // namespace espalier::cuda
