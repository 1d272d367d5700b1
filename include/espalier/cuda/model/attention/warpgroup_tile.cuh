// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/matrix_descriptor.cuh"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/model/attention/attention_tile.cuh"
#include "espalier/cuda/model/attention/tile_attention.cuh"

namespace espalier::cuda::detail {

//! The sizes of a tile of attention by wgmma: three warpgroups work on 64 rows of queries each, and a fourth one copies
//! the blocks of 64 slots.
//!
//! Matrices in shared memory, of queries, keys or values, are panels of 64 rows of 64 numbers. A panel's row has 128
//! bytes, swizzled as matrix_descriptor says; the eight lanes that copy its eight chunks of 16 bytes write to different
//! banks.
template <class NumberT, int dim>
struct warpgroup_tile {
  static constexpr int warps = 4;  // warps of a warpgroup
  static constexpr int group_threads = 32 * warps;
  static constexpr int group_rows = 64;
  static constexpr int groups = 3;
  static constexpr int rows = groups * group_rows;
  static constexpr int threads = (1 + groups) * group_threads;
  static constexpr int slots = 64;
  static constexpr int row_bytes = dim * static_cast<int>(sizeof(NumberT));
  static constexpr int chunks = row_bytes / 16;
  static constexpr int pitch = 128;
  static constexpr int panel_bytes = slots * pitch;
  static constexpr int buffer_bytes = slots * row_bytes;
  static constexpr std::uint32_t n_buffers = 8;  // buffers for keys and values in turn
  static constexpr std::uint32_t under_way = 3;  // copies under way when one more is started
  static constexpr std::uint32_t alignment = 1024;
  // Registers of a thread that copies, and of one that computes. At first all have 128, as many as the launch bounds
  // allow.
  static constexpr int copier_registers = 56;
  static constexpr int group_registers = 152;
  static_assert(copier_registers + groups * group_registers <= (1 + groups) * 128);
  static_assert(sizeof(NumberT) == 2 && dim % 64 == 0 && group_rows == slots);

  static constexpr std::size_t query_bytes = std::size_t{rows} * row_bytes;
  static constexpr std::size_t mask_bytes = std::size_t{rows} * 2 * sizeof(std::uint32_t);
  static constexpr std::size_t copied_bytes = query_bytes + n_buffers * buffer_bytes + n_buffers / 2 * mask_bytes;

  //! Shared memory of a thread block: queries; buffers; a mask for each pair of buffers; counters; a bit for each
  //! column of the tree, set if some row sees it; and the list of the blocks of 64 slots in which some row sees
  //! something.
  static constexpr std::size_t shared_bytes(std::int32_t seen_words) {
    return alignment + copied_bytes + std::size_t{2} * n_buffers * sizeof(std::uint64_t) +
           static_cast<std::size_t>(seen_words) * sizeof(std::uint32_t) +
           static_cast<std::size_t>(seen_words / 2 + 1) * sizeof(std::int32_t);
  }

  //! Bytes from the first row of a matrix of 64 rows to a chunk of a row.
  __device__ static constexpr std::uint32_t offset(std::uint32_t row, std::uint32_t chunk) {
    return chunk / 8 * panel_bytes + row * pitch + (((chunk ^ row) & 7U) << 4);
  }

  //! Bytes of shared memory to skip at the front for alignment.
  __device__ static std::uint32_t unaligned(const unsigned char* memory) {
    return static_cast<std::uint32_t>(-ptx::address_of(memory) & (alignment - 1));
  }
};

//! The state of a warpgroup with 64 rows: each of its four warps has the state of 16 rows, in order. Products are made
//! by wgmma, which the warpgroup starts and waits for.
template <class NumberT, int dim>
struct warpgroup_sums : warp_attention<NumberT, dim, 1> {
  using base = warp_attention<NumberT, dim, 1>;
  using tile = warpgroup_tile<NumberT, dim>;

  matrix_descriptor queries;

  __device__ explicit warpgroup_sums(ptx::shared_address queries_)
      : base(queries_), queries(matrix_descriptor::at(queries_)) {}

  //! Starts the products of the queries and a block of keys.
  __device__ void start_scores(typename base::scores& to, ptx::shared_address keys) const {
    const auto key = matrix_descriptor::at(keys);
    ptx::products_begin(to[0]);
    ESPALIER_UNROLL
    for (int step = 0; step < dim / 16; ++step) {
      const auto at = static_cast<std::uint32_t>(step / 4 * tile::panel_bytes + step % 4 * 32);
      ptx::start_product<NumberT>(to[0], queries.moved(at), key.moved(at), step > 0);
    }
    ptx::products_commit();
  }

  //! Starts to add the weighted values of a block: 16 slots at a time, in order.
  __device__ void start_add(const typename base::weights& by, ptx::shared_address values) {
    const auto value = matrix_descriptor::at(values);
    ptx::products_begin(this->sum[0], by[0]);
    ESPALIER_UNROLL
    for (int step = 0; step < tile::slots / 16; ++step) {
      ESPALIER_UNROLL
      for (int panel = 0; panel < dim / 64; ++panel) {
        ptx::start_product<NumberT>(
            this->sum[0] + 8 * panel, by[0][step],
            value.moved(static_cast<std::uint32_t>(panel * tile::panel_bytes + 16 * step * tile::pitch)));
      }
    }
    ptx::products_commit();
  }
};

}  // namespace espalier::cuda::detail
