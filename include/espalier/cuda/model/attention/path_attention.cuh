// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"
#include "espalier/cuda/model/attention/attention_merge.cuh"
#include "espalier/cuda/model/attention/attention_tile.cuh"
#include "espalier/cuda/model/attention/row_keys.cuh"
#include "espalier/cuda/model/attention/tile_attention.cuh"

namespace espalier::cuda::detail {

//! The sizes of path_attention: 16 query heads of one row.
template <class NumberT, int dim>
struct path_tile {
  using tile = attention_tile<NumberT, dim, 1>;
  static constexpr int queries = tile::warp_rows;
  static constexpr std::int32_t max_warps = 512 / dim;  // at most position_splits, and a power of two
  static constexpr std::size_t query_bytes = std::size_t{queries} * tile::row_bytes;
  static constexpr std::size_t warp_bytes = std::size_t{2} * tile::buffer_bytes;

  static constexpr std::size_t shared_bytes(std::int32_t warps) {
    return query_bytes + static_cast<std::size_t>(warps) * (warp_bytes + row_keys::block * sizeof(std::int32_t));
  }
};

//! The blocks of 64 keys that a warp sums, split by split.
struct path_order {
  std::int32_t begin, end;     // blocks of the row
  std::int32_t warp, n_warps;  // splits warp, warp + n_warps, ... are this warp's

  //! The first block of the split, or of this warp's next one that has any; end: none.
  __device__ std::int32_t first(std::int32_t split) const {
    for (; split < position_splits; split += n_warps) {
      const std::int32_t block = begin + (split + position_splits - begin % position_splits) % position_splits;
      if (block < end) return block;
    }
    return end;
  }
  __device__ std::int32_t next(std::int32_t block) const {
    const std::int32_t follower = block + position_splits;
    return follower < end ? follower : first(block % position_splits + n_warps);
  }
};

//! Attention by position of one row: over the blocks of 64 keys of its own path that its tile has not summed, and then
//! over all splits. A key goes into the sums of its block at its own place, wherever it lies: so the sums are those
//! that a tile makes where the block is in the prefix.
//!
//! A warp sums whole splits. While it works on a block's keys, its values are on their way, and then the next block's
//! keys.
//!
//! Shapes      grid: rows, key-value heads, groups of 16 heads that share keys and values
//! Complexity  a row reads its blocks' keys and values itself, once a key-value head
template <class NumberT, int dim>
ESPALIER_KERNEL __launch_bounds__(32 * path_tile<NumberT, dim>::max_warps,
                                  1) void path_attention(attention_arguments<NumberT> a) {
  using sizes = path_tile<NumberT, dim>;
  using tile = typename sizes::tile;
  using warp_state = warp_attention<NumberT, dim, 1>;
  ptx::await_previous();
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  if (a.batch.sequence_of[row] < 0) return;
  const auto thread = static_cast<std::int32_t>(threadIdx.x), lane = thread % 32, warp = thread / 32,
             n_warps = static_cast<std::int32_t>(blockDim.x) / 32;

  tile_place place = {};
  place.first_row = row;
  place.first_head = sizes::queries * static_cast<std::int32_t>(blockIdx.z);
  place.n_queries = a.group - place.first_head < sizes::queries ? a.group - place.first_head : sizes::queries;
  place.group = a.group;
  place.kv_head = static_cast<std::int32_t>(blockIdx.y);

  // Shared memory: queries; keys and values of each warp; where each warp's keys lie.
  unsigned char* const memory = shared_memory();
  const ptx::shared_address query_address = ptx::address_of(memory);
  const ptx::shared_address key_address =
      query_address + static_cast<std::uint32_t>(sizes::query_bytes) +
      static_cast<std::uint32_t>(warp) * static_cast<std::uint32_t>(sizes::warp_bytes);
  const ptx::shared_address value_address = key_address + static_cast<std::uint32_t>(tile::buffer_bytes);
  auto* const rows = reinterpret_cast<std::int32_t*>(memory + sizes::query_bytes +
                                                     static_cast<std::size_t>(n_warps) * sizes::warp_bytes) +
                     warp * row_keys::block;

  for (std::int32_t i = thread; i < sizes::queries * tile::chunks; i += 32 * n_warps) {
    const std::int32_t query = i / tile::chunks, chunk = i % tile::chunks;
    const bool there = query < place.n_queries;
    const std::int32_t head = place.kv_head * place.group + place.first_head + (there ? query : 0);
    ptx::copy_async_16(
        query_address + tile::offset(static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(chunk)),
        a.queries + static_cast<std::int64_t>(row) * a.query_stride + head * dim + 8 * chunk, there);
  }

  // Heads of one row may have been in tiles that have summed different blocks.
  const auto summed = [&](std::int32_t query) {
    if (a.whole_blocks == nullptr) return 0;
    return a.whole_blocks[place.out_of(a, query < place.n_queries ? query : 0)];
  };
  const std::int32_t own_begin[2] = {summed(lane / 4), summed(lane / 4 + 8)};
  path_order order{summed(lane % sizes::queries), 0, warp, n_warps};
  for (int step = 1; step < sizes::queries; step *= 2) {
    const std::int32_t other = __shfl_xor_sync(0xFFFFFFFFU, order.begin, step);
    order.begin = other < order.begin ? other : order.begin;
  }
  const row_keys keys(a.batch, row, a.seen_words);
  order.end = keys.n_blocks();

  const NumberT* const first_key = a.kv.data + static_cast<std::int64_t>(place.kv_head) * dim;
  const std::int64_t to_values = static_cast<std::int64_t>(a.kv.page_size) * a.kv.row_size;
  const auto copy = [&](ptx::shared_address to, const NumberT* from, std::int32_t block) {
    if (block < order.end) {
      ESPALIER_UNROLL
      for (std::int32_t i = 0; i < tile::slots * tile::chunks / 32; ++i) {
        const std::int32_t key = (32 * i + lane) / tile::chunks, chunk = lane % tile::chunks;
        const std::int32_t at = rows[key];
        ptx::copy_async_16(to + tile::offset(static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(chunk)),
                           from + static_cast<std::int64_t>(at < 0 ? 0 : at) * a.kv.row_size + 8 * chunk, at >= 0);
      }
    }
    ptx::copy_async_commit();
  };
  const auto list = [&](std::int32_t block) {
    if (block < order.end) keys.list(a.kv, block, rows);
  };

  std::int32_t block = order.first(warp);
  list(block);
  copy(key_address, first_key, block);
  copy(value_address, first_key + to_values, block);
  ptx::copy_async_wait<1>();
  __syncthreads();  // the queries

  warp_state state(query_address);
  // Goes on from what the head's tile has summed of the split, or begins.
  const auto begin = [&](std::int32_t split, int lower) {
    const std::int32_t query = lane / 4 + 8 * lower;
    state.begin(a, warp_state::part_of(a, place, query < place.n_queries ? query : 0, split), 0, lower,
                query < place.n_queries && split < own_begin[lower]);
  };
  if (block < order.end) state.keep_queries();
  bool begins = true;
  while (block < order.end) {
    const std::int32_t split = block % position_splits;
    if (begins) {
      ESPALIER_UNROLL
      for (int lower = 0; lower < 2; ++lower)
        begin(split, lower);
    }
    const std::int32_t next = order.next(block), left = keys.n - row_keys::block * block;
    ptx::copy_async_wait<1>();
    __syncwarp();
    typename warp_state::scores scores = {};
    typename warp_state::weights weights;
    state.score(scores, key_address);
    ESPALIER_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      const bool open = block >= own_begin[lower];
      warp_state::hide(scores, 0, lower, make_uint2(open ? first_bits(left) : 0U, open ? first_bits(left - 32) : 0U));
    }
    __syncwarp();
    list(next);
    copy(key_address, first_key, next);
    state.weigh(weights, scores, a.exponent_scale);
    ptx::copy_async_wait<1>();
    __syncwarp();
    state.add(weights, value_address);
    // What the head's tile has summed before is as it was.
    ESPALIER_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      if (block < own_begin[lower]) begin(split, lower);
    }
    __syncwarp();
    copy(value_address, first_key + to_values, next);
    begins = next >= order.end || next % position_splits != split;
    if (begins) state.write_part(a, place, 0, split);
    block = next;
  }
  ptx::copy_async_wait<0>();
  __syncthreads();
  const std::int32_t n_parts = order.end < position_splits ? order.end : position_splits;
  for (std::int32_t query = warp; query < place.n_queries; query += n_warps)
    merge_parts(a, place.out_of(a, query), n_parts);
}

}  // namespace espalier::cuda::detail
