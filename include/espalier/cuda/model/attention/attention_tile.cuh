// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"

namespace espalier::cuda::detail {

//! The sizes of a tile of attention on tensor cores: rows of queries by a block of slots.
//!
//! Rows of numbers in shared memory consist of chunks of 16 bytes. Chunk c of row r is stored at the position of chunk
//! c ^ (r % 8). So the chunks of one column of eight rows, which one load of fragments reads, lie in different banks,
//! and so do the chunks 8 k to 8 k + 7 of one row.
template <class NumberT, int dim, int row_groups>
struct attention_tile {
  static constexpr int warps = 4;
  static constexpr int threads = 32 * warps;
  static constexpr int warp_rows = 16 * row_groups;
  static constexpr int rows = warps * warp_rows;
  static constexpr int slots = 64;
  static constexpr int row_bytes = dim * static_cast<int>(sizeof(NumberT));
  static constexpr int chunks = row_bytes / 16;
  static constexpr int pitch = row_bytes;  // bytes from row to row
  static constexpr int buffer_bytes = slots * row_bytes;
  static_assert(sizeof(NumberT) == 2 && chunks % 8 == 0 && chunks <= 32);

  static constexpr std::size_t query_bytes = std::size_t{rows} * row_bytes;
  static constexpr std::size_t mask_bytes = std::size_t{2} * rows * 2 * sizeof(std::uint32_t);

  //! Shared memory of a thread block: queries, buffers, the masks of two blocks, the columns that some row sees, and
  //! the list of blocks in which a row sees something.
  static constexpr std::size_t shared_bytes(std::int32_t n_stages, std::int32_t seen_words) {
    return query_bytes + static_cast<std::size_t>(2 * n_stages) * buffer_bytes + mask_bytes +
           static_cast<std::size_t>(seen_words) * sizeof(std::uint32_t) +
           static_cast<std::size_t>(seen_words / 2 + 1) * sizeof(std::int32_t);
  }

  //! Bytes from the first row to a chunk of a row.
  __device__ static constexpr std::uint32_t offset(std::uint32_t row, std::uint32_t chunk) {
    return row * row_bytes + ((chunk ^ (row & 7U)) << 4);
  }
};

//! The queries on which a thread block works: pairs of row and head of one sequence, row by row, with the `group` query
//! heads of one key-value head in each row. Rows may be padding, which sees nothing.
struct tile_place {
  batch_sequence sequence;
  std::int32_t first_row;   // row of the batch
  std::int32_t first_head;  // head, counted in the group, at which the tile begins in the first row
  std::int32_t n_queries;   // number of pairs of row and head; 0 for a tile without a sequence
  std::int32_t n_rows;
  std::int32_t group;
  std::int32_t kv_head;

  __device__ std::int32_t row_of(std::int32_t query) const { return (first_head + query) / group; }
  __device__ std::int32_t head_of(std::int32_t query) const { return (first_head + query) % group; }

  //! Index of a query among all pairs of row and head of the batch.
  template <class NumberT>
  __device__ std::int64_t out_of(const attention_arguments<NumberT>& a, std::int32_t query) const {
    return static_cast<std::int64_t>(first_row + row_of(query)) * a.n_heads + kv_head * group + head_of(query);
  }
};

template <class NumberT>
__device__ tile_place find_tile(const attention_arguments<NumberT>& a, std::int32_t tile, std::int32_t tile_rows) {
  tile_place place = {};
  place.group = a.group;
  place.kv_head = static_cast<std::int32_t>(blockIdx.z);
  for (std::int32_t i = 0; i < a.batch.n_sequences; ++i) {
    const batch_sequence s = a.batch.sequences[i];
    const std::int32_t queries = (s.row_end - s.row_begin) * a.group;
    const std::int32_t tiles = (queries + tile_rows - 1) / tile_rows;
    if (tile < tiles) {
      const std::int32_t first = tile * tile_rows;
      place.sequence = s;
      place.first_row = s.row_begin + first / a.group;
      place.first_head = first % a.group;
      place.n_queries = queries - first < tile_rows ? queries - first : tile_rows;
      place.n_rows = (place.first_head + place.n_queries - 1) / a.group + 1;
      return place;
    }
    tile -= tiles;
  }
  return place;
}

//! The blocks of 64 slots that a tile works on: the blocks from slot 0 to the prefix's end, then the blocks of the
//! mask's columns in which some row sees something. The columns begin at the prefix's end. By position
//! (find_whole_blocks), there are only blocks from slot 0 on, which may reach beyond the prefix.
struct tile_blocks {
  const std::uint32_t* seen;   // columns that some row sees, one bit each; not used by position
  const std::int32_t* listed;  // blocks of columns in which some row sees something, ascending
  std::int32_t n_first;        // number of blocks from slot 0 on
  std::int32_t first_end;      // slot at which these blocks end
  std::int32_t n_listed;       // number of blocks of columns
};

//! Fills seen and listed in shared memory, and returns the blocks of a tile. Called by all threads of the block; ends
//! with a barrier.
__device__ inline tile_blocks find_blocks(const tile_place& place, const forward_batch_view& batch, std::uint32_t* seen,
                                          std::int32_t* listed, std::int32_t seen_words) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32), warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const auto n_threads = static_cast<std::int32_t>(blockDim.x), warps = n_threads / 32;
  const batch_sequence& s = place.sequence;
  const std::int32_t words = s.mask_words < seen_words ? s.mask_words : seen_words;
  const std::int32_t n_blocks = (words + 1) / 2;
  for (auto w = static_cast<std::int32_t>(threadIdx.x); w < 2 * n_blocks; w += n_threads)
    seen[w] = 0;
  __syncthreads();
  const std::uint32_t* const rows = batch.mask + s.mask_begin + (place.first_row - s.row_begin) * s.mask_words;
  for (std::int32_t w = lane; w < words; w += 32) {
    std::uint32_t any = 0;
    for (std::int32_t r = warp; r < place.n_rows; r += warps)
      any |= batch.sequence_of[place.first_row + r] < 0 ? 0U : rows[r * s.mask_words + w];
    if (any != 0) atomicOr(seen + w, any);
  }
  __syncthreads();
  if (warp == 0) {
    std::int32_t n = 0;
    for (std::int32_t first = 0; first < n_blocks; first += 32) {
      const std::int32_t block = first + lane;
      const bool some = block < n_blocks && (seen[2 * block] | seen[2 * block + 1]) != 0;
      const std::uint32_t which = __ballot_sync(0xFFFFFFFFU, some);
      if (some) listed[1 + n + __popc(which & ((1U << lane) - 1U))] = block;
      n += __popc(which);
    }
    if (lane == 0) listed[0] = n;
  }
  __syncthreads();
  return {seen, listed + 1, (s.prefix + 63) / 64, s.prefix, listed[0]};
}

//! Returns the blocks of 64 slots that every row of a tile sees whole, from slot 0 up to the first block that some row
//! does not see whole. In these blocks a key's slot is its position. The later blocks are left to path_attention.
//! Called by all threads of the block.
__device__ inline tile_blocks find_whole_blocks(const tile_place& place, const forward_batch_view& batch,
                                                std::uint32_t* seen, std::int32_t seen_words) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32), warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const auto n_threads = static_cast<std::int32_t>(blockDim.x), warps = n_threads / 32;
  const batch_sequence& s = place.sequence;
  const std::int32_t words = s.mask_words < seen_words ? s.mask_words : seen_words;
  for (auto w = static_cast<std::int32_t>(threadIdx.x); w < words; w += n_threads)
    seen[w] = ~0U;
  __syncthreads();
  const std::uint32_t* const rows = batch.mask + s.mask_begin + (place.first_row - s.row_begin) * s.mask_words;
  for (std::int32_t w = lane; w < words; w += 32) {
    std::uint32_t all = ~0U;
    for (std::int32_t r = warp; r < place.n_rows; r += warps)
      all &= batch.sequence_of[place.first_row + r] < 0 ? ~0U : rows[r * s.mask_words + w];
    if (all != ~0U) atomicAnd(seen + w, all);
  }
  int n_real = 0;
  for (auto r = static_cast<std::int32_t>(threadIdx.x); r < place.n_rows; r += n_threads)
    n_real += batch.sequence_of[place.first_row + r] < 0 ? 0 : 1;
  if (__syncthreads_count(n_real > 0) == 0) return {seen, nullptr, 0, 0, 0};  // all rows are padding
  // Finds the first column that some row does not see.
  std::int32_t column = 32 * words;
  for (std::int32_t first = 0; first < words; first += 32) {
    const std::uint32_t hidden = first + lane < words ? ~seen[first + lane] : 0;
    const std::uint32_t which = __ballot_sync(0xFFFFFFFFU, hidden != 0);
    if (which == 0) continue;
    const std::int32_t word = __ffs(static_cast<int>(which)) - 1;
    const std::uint32_t bits = __shfl_sync(0xFFFFFFFFU, hidden, word);
    column = 32 * (first + word) + __ffs(static_cast<int>(bits)) - 1;
    break;
  }
  const std::int32_t n = (s.prefix + column) / 64;
  return {seen, nullptr, n, 64 * n, 0};
}

//! The blocks of a tile that a split works on, in order: by position, every block whose number is the split's modulo
//! position_splits; otherwise a run of blocks.
struct tile_turns {
  std::int32_t begin, step, n;

  template <class NumberT>
  __device__ tile_turns(const attention_arguments<NumberT>& a, const tile_blocks& blocks, std::int32_t split) {
    const std::int32_t n_blocks = blocks.n_first + blocks.n_listed;
    begin = a.by_position ? split : split_begin(n_blocks, split, a.n_splits);
    step = a.by_position ? position_splits : 1;
    const std::int32_t end = a.by_position ? n_blocks : split_begin(n_blocks, split + 1, a.n_splits);
    n = end > begin ? (end - begin + step - 1) / step : 0;
  }
  __device__ std::int32_t block(std::int32_t turn) const { return begin + turn * step; }
};

//! Copies keys and values into shared memory, one block of slots at a time: keys(), then values() of the same block. A
//! slot that no row of the tile sees is not read, and becomes zero: its weight is zero, and zero times NaN would be
//! NaN.
//!
//! A warp copies the same slots of every block. Each lane finds where one of these slots lies in the cache, and tells
//! the other lanes.
template <class NumberT, class TileT>
struct slot_copier {
  static constexpr int lanes_per_row = TileT::chunks;
  static constexpr int rows_at_once = 32 / lanes_per_row;
  static constexpr int step_rows = rows_at_once * TileT::warps;  // slots that all warps copy in one step
  static constexpr int steps = TileT::slots / step_rows;

  const kv_view<NumberT>& kv;
  const tile_place& place;
  const tile_blocks& blocks;
  const NumberT* first_key;  // this lane's chunk of row 0 of the cache
  std::int64_t to_values;    // distance from keys to values, in numbers
  std::uint32_t offset;      // offset of this lane's chunk in the first step
  std::int32_t own = -1;     // position in the cache of the slot that this lane finds; -1: no row of the tile sees it

  __device__ slot_copier(const kv_view<NumberT>& kv_, const tile_place& place_, const tile_blocks& blocks_)
      : kv(kv_), place(place_), blocks(blocks_) {
    const std::uint32_t chunk = threadIdx.x % lanes_per_row;
    first_key = kv.data + static_cast<std::int64_t>(place.kv_head) * (TileT::row_bytes / 2) + 8 * chunk;
    to_values = static_cast<std::int64_t>(kv.page_size) * kv.row_size;
    offset = TileT::offset(threadIdx.x / lanes_per_row, chunk);  // step_rows is a multiple of 8
  }

  __device__ void keys(ptx::shared_address to, std::int32_t block) {
    // Lane i finds the slot that lane group i % rows_at_once copies in step i / rows_at_once.
    const auto i = static_cast<std::int32_t>(threadIdx.x % (steps * rows_at_once));
    const std::int32_t column =
        i / rows_at_once * step_rows + static_cast<std::int32_t>(threadIdx.x / 32) * rows_at_once + i % rows_at_once;
    std::int32_t slot = 64 * block + column;
    bool there = slot < blocks.first_end;
    if (block >= blocks.n_first) {
      const std::int32_t c = 64 * blocks.listed[block - blocks.n_first] + column;
      slot = place.sequence.prefix + c;
      there = (blocks.seen[c / 32] >> (c % 32) & 1U) != 0;
    }
    own = there ? static_cast<std::int32_t>(kv.row(place.sequence.sequence, slot)) : -1;
    copy(to, first_key);
  }

  __device__ void values(ptx::shared_address to) const { copy(to, first_key + to_values); }

  __device__ void copy(ptx::shared_address to, const NumberT* from) const {
    static_assert(step_rows % 8 == 0);
    const auto lane_row = static_cast<int>(threadIdx.x % 32 / lanes_per_row);
    ESPALIER_UNROLL
    for (int step = 0; step < steps; ++step) {
      const std::int32_t row = __shfl_sync(0xFFFFFFFFU, own, step * rows_at_once + lane_row);
      ptx::copy_async_16(to + offset + static_cast<std::uint32_t>(step * step_rows * TileT::pitch),
                         from + static_cast<std::int64_t>(row < 0 ? 0 : row) * kv.row_size, row >= 0);
    }
  }
};

}  // namespace espalier::cuda::detail
