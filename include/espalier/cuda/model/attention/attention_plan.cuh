// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "espalier/cuda/model/attention/attention_arguments.cuh"
#include "espalier/cuda/model/attention/attention_shape.cuh"
#include "espalier/cuda/model/attention/attention_tuning.cuh"

namespace espalier::cuda::detail {

//! The way in which one batch is spread over the device. It is a function of shapes alone, so that a captured graph
//! stays valid.
struct attention_plan {
  std::int32_t row_groups = 1;  //!< groups of 64 rows of queries in a tile; 3 by warpgroups
  std::int32_t n_tiles = 1;     //!< tiles of one key-value head, over all sequences; 0: each row reads all its keys
                                //!< itself
  std::int32_t n_splits = 1;    //!< splits of the context
};

//! Number of tiles of `rows` rows that cover the rows of all heads that share keys, however the rows are divided among
//! sequences.
inline std::int32_t tiles_for(const attention_shape& shape, std::int32_t n_rows, std::int32_t n_sequences,
                              std::int32_t rows) {
  return n_rows * (shape.n_heads / shape.n_kv_heads) / rows + std::max(n_sequences, 1);
}

//! A number of splits and its estimated time.
struct split_estimate {
  std::int64_t time;
  std::int32_t n_splits;
};

//! The estimated time: the number of thread blocks that a multiprocessor gets, times the number of blocks of 64 slots
//! that each of them works on, plus the times of starting them and of merging.
inline std::int64_t estimated_time(const attention_shape& shape, const attention_tuning& tuning, std::int32_t n_rows,
                                   std::int32_t max_context, std::int32_t n_tiles, std::int32_t tile_cost,
                                   std::int32_t splits) {
  const std::int64_t work = std::int64_t{n_tiles} * shape.n_kv_heads;
  const std::int64_t blocks = max_context / 64 + 2;
  const std::int64_t out_bytes = std::int64_t{n_rows} * shape.n_heads * shape.head_dim * 4;
  const std::int64_t share = (work * splits + tuning.multiprocessors - 1) / tuning.multiprocessors;
  const std::int32_t resident = tuning.warpgroups ? 1 : tuning.resident_blocks;
  const std::int64_t waves = (share + resident - 1) / resident;
  const std::int64_t one = tile_cost * ((blocks + splits - 1) / splits);
  std::int64_t time = share * one + waves * tuning.start_cost;
  // A thread block that has its multiprocessor to itself waits more.
  if (share % resident != 0) time += one / 2;
  if (splits > 1) time += tuning.merge_cost + 2 * splits * out_bytes / tuning.merge_bytes;
  return time;
}

//! The number of splits with the least estimated time. Few rows leave multiprocessors idle unless the context is split;
//! many rows fill them without splits.
inline split_estimate best_splits(const attention_shape& shape, const attention_tuning& tuning, std::int32_t n_rows,
                                  std::int32_t max_context, std::int32_t n_tiles, std::int32_t tile_cost) {
  split_estimate best{0, 0};
  for (std::int32_t splits = 1; splits <= std::min(tuning.max_splits, max_context / 64 + 2); ++splits) {
    const std::int64_t time = estimated_time(shape, tuning, n_rows, max_context, n_tiles, tile_cost, splits);
    if (best.n_splits == 0 || time < best.time) best = {time, splits};
  }
  return best;
}

//! The plan for sums by position; it may spread a batch in any way, since no bit depends on it.
inline attention_plan plan_by_position(const attention_shape& shape, const attention_tuning& tuning,
                                       std::int32_t n_rows, std::int32_t n_sequences, std::int32_t max_context) {
  const std::int32_t splits = std::clamp((max_context + 63) / 64, 1, position_splits);
  const std::int64_t bytes = std::int64_t{4} * n_rows * shape.n_kv_heads * shape.head_dim * max_context;
  if (max_context <= tuning.path_context && bytes <= tuning.path_bytes) return {1, 0, splits};
  if (tuning.warpgroups) return {3, tiles_for(shape, n_rows, n_sequences, 192), splits};
  const std::int32_t small = tiles_for(shape, n_rows, n_sequences, 64);
  const std::int32_t large = tiles_for(shape, n_rows, n_sequences, 128);
  const auto time = [&](std::int32_t n_tiles, std::int32_t cost) {
    return estimated_time(shape, tuning, n_rows, max_context, n_tiles, cost, splits);
  };
  if (time(large, tuning.large_tile_cost) < time(small, tuning.small_tile_cost)) return {2, large, splits};
  return {1, small, splits};
}

inline attention_plan plan_attention(const attention_shape& shape, const attention_tuning& tuning, std::int32_t n_rows,
                                     std::int32_t n_sequences, std::int32_t max_context) {
  if (shape.batch_invariant) return plan_by_position(shape, tuning, n_rows, n_sequences, max_context);
  if (tuning.warpgroups) {
    const std::int32_t n_tiles = tiles_for(shape, n_rows, n_sequences, 192);
    return {3, n_tiles, best_splits(shape, tuning, n_rows, max_context, n_tiles, tuning.group_tile_cost).n_splits};
  }
  const std::int32_t small = tiles_for(shape, n_rows, n_sequences, 64);
  const std::int32_t large = tiles_for(shape, n_rows, n_sequences, 128);
  const auto by_small = best_splits(shape, tuning, n_rows, max_context, small, tuning.small_tile_cost);
  const auto by_large = best_splits(shape, tuning, n_rows, max_context, large, tuning.large_tile_cost);
  if (by_large.time < by_small.time) return {2, large, by_large.n_splits};
  return {1, small, by_small.n_splits};
}

//! Number of rows of partial results that plans need for up to max_rows rows: of one sequence, or by position of any
//! number of sequences.
inline std::size_t rows_of_parts(const attention_shape& shape, const attention_tuning& tuning) {
  std::size_t most = 0;
  for (std::int32_t rows = 1; rows <= shape.max_rows; ++rows) {
    const std::int32_t splits = plan_attention(shape, tuning, rows, 1, shape.max_context).n_splits;
    if (splits > 1 || shape.batch_invariant)
      most = std::max(most, static_cast<std::size_t>(splits) * static_cast<std::size_t>(rows));
  }
  return most;
}

}  // namespace espalier::cuda::detail
