// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"

namespace espalier::cuda {

//! The numbers by which tree attention is fitted to a device.
//!
//! Costs are in units of some 200 ns of a multiprocessor that two thread blocks share, estimated from counts of bytes
//! and products for compute capability 9.0. On an H200 a unit took 0.13 to 0.23 us, over prefixes of 512 to 16,384
//! slots and 1 to 1,024 nodes; the form with the least estimate, mma.sync or warpgroups, took at most 1 % more than the
//! quicker of the two for 14 of these 15 shapes, and 21 % more for 64 nodes after 512 slots (bench/cuda/attention.cu).
struct attention_tuning {
  std::int32_t multiprocessors = 1;
  std::int32_t shared_bytes = 0;       //!< shared memory of a multiprocessor
  std::int32_t resident_blocks = 2;    //!< thread blocks that a multiprocessor can hold, as registers allow
  std::int32_t max_splits = 32;        //!< splits of the context, 1 to 32
  std::int32_t small_tile_cost = 7;    //!< cost of a tile of 64 rows, for each block of slots
  std::int32_t large_tile_cost = 8;    //!< cost of a tile of 128 rows, for each block of slots
  std::int32_t group_tile_cost = 9;    //!< the same of a tile of 192 rows by warpgroups, alone on its multiprocessor
  std::int32_t start_cost = 20;        //!< cost of a thread block, before its first block of slots
  std::int32_t group_start_cost = 22;  //!< start_cost of a thread block of warpgroups
  std::int32_t merge_cost = 20;        //!< cost of the second kernel, if the context is split
  std::int32_t merge_bytes = 360'000;  //!< bytes that the second kernel moves in a unit of time
  std::int32_t path_context = 1024;    //!< by position, each row reads all its keys itself if the context has at most
                                       //!< path_context slots
  std::int64_t path_bytes = 32 << 20;  //!< and if the rows together read at most path_bytes bytes
  bool warpgroups = true;              //!< products by wgmma where the costs say so, or, by position, always; needs
                                       //!< compute capability 9.0 and code for sm_90a, and has no effect elsewhere
};

//! The tuning for a compute capability, given as 10 * major + minor.
constexpr attention_tuning attention_tuning_for(std::int32_t capability, std::int32_t multiprocessors) {
  attention_tuning tuning;
  tuning.multiprocessors = multiprocessors;
  if (capability >= 120 || capability == 86 || capability == 89) {
    tuning.shared_bytes = 100 * 1024;
  } else if (capability >= 90) {
    tuning.shared_bytes = 228 * 1024;
  } else {
    tuning.shared_bytes = 164 * 1024;
  }
  return tuning;
}

//! The tuning for the present device.
inline attention_tuning attention_tuning_of_device() {
  int device = 0, major = 0, minor = 0, multiprocessors = 0;
  require(cudaGetDevice(&device), "cudaGetDevice");
  require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  require(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  require(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return attention_tuning_for(10 * major + minor, multiprocessors);
}

}  // namespace espalier::cuda

namespace espalier::cuda::detail {

//! The way in which one batch is spread over the device. It is a function of shapes alone, so that a captured graph
//! stays valid.
struct attention_plan {
  std::int32_t row_groups = 1;  //!< groups of 64 rows of queries in a tile; 3 by warpgroups
  std::int32_t n_tiles = 1;     //!< tiles of one key-value head, over all sequences; 0: each row reads all its keys
                                //!< itself
  std::int32_t n_splits = 1;    //!< splits of the context
};

//! Returns how many tiles of `rows` pairs of row and head are enough for the query heads of one key-value head, however
//! the n_rows rows are divided among sequences.
inline std::int32_t tiles_for(const attention_shape& shape, std::int32_t n_rows, std::int32_t n_sequences,
                              std::int32_t rows) {
  return n_rows * (shape.n_heads / shape.n_kv_heads) / rows + std::max(n_sequences, 1);
}

//! A size of tiles, and what its thread blocks cost: see attention_tuning.
struct tile_form {
  std::int32_t row_groups;  //!< groups of 64 rows
  std::int32_t cost;        //!< for each block of slots
  std::int32_t start_cost;
  std::int32_t resident_blocks;
};

inline tile_form small_tiles(const attention_tuning& t) {
  return {1, t.small_tile_cost, t.start_cost, t.resident_blocks};
}
inline tile_form large_tiles(const attention_tuning& t) {
  return {2, t.large_tile_cost, t.start_cost, t.resident_blocks};
}
inline tile_form group_tiles(const attention_tuning& t) {
  return {3, t.group_tile_cost, t.group_start_cost, 1};
}

//! A plan and its estimated time.
struct estimated_plan {
  attention_plan plan;
  std::int64_t time;
};

//! The plan with tiles of the given form and this number of splits. Its time is the number of thread blocks that a
//! multiprocessor gets, times the number of blocks of 64 slots that each of them works on, times the form's cost for
//! such a block, plus the times of starting thread blocks and of merging.
inline estimated_plan estimate(const attention_shape& shape, const attention_tuning& tuning, const tile_form& form,
                               std::int32_t n_rows, std::int32_t n_sequences, std::int32_t max_context,
                               std::int32_t splits) {
  const std::int32_t n_tiles = tiles_for(shape, n_rows, n_sequences, 64 * form.row_groups);
  const std::int64_t work = std::int64_t{n_tiles} * shape.n_kv_heads;
  const std::int64_t blocks = max_context / 64 + 2;
  const std::int64_t out_bytes = std::int64_t{n_rows} * shape.n_heads * shape.head_dim * 4;
  const std::int64_t share = (work * splits + tuning.multiprocessors - 1) / tuning.multiprocessors;
  const std::int64_t waves = (share + form.resident_blocks - 1) / form.resident_blocks;
  const std::int64_t one = form.cost * ((blocks + splits - 1) / splits);
  std::int64_t time = share * one + waves * form.start_cost;
  // A thread block that has its multiprocessor to itself waits more.
  if (share % form.resident_blocks != 0) time += one / 2;
  if (splits > 1) time += tuning.merge_cost + 2 * splits * out_bytes / tuning.merge_bytes;
  return {{form.row_groups, n_tiles, splits}, time};
}

//! The plan of one form with the number of splits that takes the least time. Few rows leave multiprocessors idle unless
//! the context is split; many rows fill them without splits.
inline estimated_plan best_splits(const attention_shape& shape, const attention_tuning& tuning, const tile_form& form,
                                  std::int32_t n_rows, std::int32_t n_sequences, std::int32_t max_context) {
  estimated_plan best = estimate(shape, tuning, form, n_rows, n_sequences, max_context, 1);
  for (std::int32_t splits = 2; splits <= std::min(tuning.max_splits, max_context / 64 + 2); ++splits) {
    const estimated_plan next = estimate(shape, tuning, form, n_rows, n_sequences, max_context, splits);
    if (next.time < best.time) best = next;
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
  const auto by = [&](const tile_form& form) {
    return estimate(shape, tuning, form, n_rows, n_sequences, max_context, splits);
  };
  const estimated_plan narrow = by(small_tiles(tuning)), large = by(large_tiles(tuning));
  return large.time < narrow.time ? large.plan : narrow.plan;
}

inline attention_plan plan_attention(const attention_shape& shape, const attention_tuning& tuning, std::int32_t n_rows,
                                     std::int32_t n_sequences, std::int32_t max_context) {
  if (shape.batch_invariant) return plan_by_position(shape, tuning, n_rows, n_sequences, max_context);
  const auto by = [&](const tile_form& form) {
    return best_splits(shape, tuning, form, n_rows, n_sequences, max_context);
  };
  estimated_plan best = by(small_tiles(tuning));
  if (const estimated_plan large = by(large_tiles(tuning)); large.time < best.time) best = large;
  if (!tuning.warpgroups) return best.plan;
  const estimated_plan groups = by(group_tiles(tuning));
  return groups.time < best.time ? groups.plan : best.plan;
}

//! Returns how many rows of partial results (splits times rows of the batch) the plans of all batches of up to max_rows
//! rows need, if a batch has one sequence. By position it is enough for any number of sequences.
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
