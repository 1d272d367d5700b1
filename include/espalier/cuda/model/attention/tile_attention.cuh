// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"
#include "espalier/cuda/model/attention/attention_tile.cuh"

namespace espalier::cuda::detail {

//! The state of one warp and its rows: their weighted sums of values so far, as fragments of the tensor cores.
//!
//! Lane i holds rows i / 4 and i / 4 + 8 of each group of 16 rows, and of each 8 columns the two from 2 (i % 4) on.
template <class NumberT, int dim, int row_groups>
struct warp_attention {
  using tile = attention_tile<NumberT, dim, row_groups>;
  static constexpr int slot_groups = tile::slots / 8;
  static constexpr bool keeps_queries = row_groups == 1;  // whether queries stay in registers; with two groups there is
                                                          // no room

  float sum[row_groups][dim / 8][4] = {};
  float most[row_groups][2];        // greatest score of a row
  float total[row_groups][2] = {};  // sum of a row's weights
  std::uint32_t query[keeps_queries ? dim / 16 : 1][4];
  ptx::shared_address queries;  // address of the warp's first row

  __device__ explicit warp_attention(ptx::shared_address queries_) : queries(queries_) {
    ESPALIER_UNROLL
    for (int g = 0; g < row_groups; ++g)
      most[g][0] = most[g][1] = -INFINITY;
  }

  __device__ void load_query(std::uint32_t (&to)[4], int g, int step) const {
    const std::uint32_t lane = threadIdx.x % 32;
    ptx::load_matrices(to, queries + tile::offset(static_cast<std::uint32_t>(16 * g) + lane % 16,
                                                  static_cast<std::uint32_t>(2 * step) + lane / 16));
  }

  //! Loads the queries into registers. Called once they have arrived in shared memory.
  __device__ void keep_queries() {
    if constexpr (keeps_queries) {
      ESPALIER_UNROLL
      for (int step = 0; step < dim / 16; ++step)
        load_query(query[step], 0, step);
    }
  }

  using scores = float[row_groups][slot_groups][4];
  using weights = std::uint32_t[row_groups][tile::slots / 16][4];

  //! Adds the products of the queries and a block of keys to `to`.
  __device__ void score(scores& to, ptx::shared_address keys) const {
    const std::uint32_t lane = threadIdx.x % 32;
    const std::uint32_t row = lane % 8 + lane / 16 * 8, right = lane / 8 % 2;
    ESPALIER_UNROLL
    for (int step = 0; step < dim / 16; ++step) {
      std::uint32_t a[row_groups][4];
      ESPALIER_UNROLL
      for (int g = 0; g < row_groups; ++g) {
        if constexpr (keeps_queries) {
          ESPALIER_UNROLL
          for (int i = 0; i < 4; ++i)
            a[g][i] = query[step][i];
        } else {
          load_query(a[g], g, step);
        }
      }
      ESPALIER_UNROLL
      for (int pair = 0; pair < slot_groups / 2; ++pair) {
        std::uint32_t b[4];
        ptx::load_matrices(b, keys + static_cast<std::uint32_t>(16 * pair * tile::row_bytes) +
                                  tile::offset(row, static_cast<std::uint32_t>(2 * step) + right));
        ESPALIER_UNROLL
        for (int g = 0; g < row_groups; ++g) {
          ptx::multiply_add<NumberT>(to[g][2 * pair], a[g], b[0], b[1]);
          ptx::multiply_add<NumberT>(to[g][2 * pair + 1], a[g], b[2], b[3]);
        }
      }
    }
  }

  //! Sets to minus infinity the scores of the slots that row i / 4 + 8 * lower of group g does not see, i being the
  //! lane. `seen` has the row's bits of the block.
  __device__ static void hide(scores& of, int g, int lower, uint2 seen) {
    const std::uint32_t shift = 2 * (threadIdx.x % 4);
    const std::uint32_t words[2] = {seen.x >> shift, seen.y >> shift};
    ESPALIER_UNROLL
    for (int group = 0; group < slot_groups; ++group) {
      ESPALIER_UNROLL
      for (int e = 0; e < 2; ++e) {
        float& one = of[g][group][2 * lower + e];
        if ((words[group / 4] >> (8 * (group % 4) + e) & 1U) == 0) one = -INFINITY;
      }
    }
  }

  //! Turns scores into weights, and rescales the sums so far.
  __device__ void weigh(weights& to, scores& of, float exponent_scale) {
    ESPALIER_UNROLL
    for (int g = 0; g < row_groups; ++g) {
      ESPALIER_UNROLL
      for (int lower = 0; lower < 2; ++lower) {
        float more = most[g][lower];
        ESPALIER_UNROLL
        for (int group = 0; group < slot_groups; ++group)
          more = fmaxf(more, fmaxf(of[g][group][2 * lower], of[g][group][2 * lower + 1]));
        more = fmaxf(more, __shfl_xor_sync(0xFFFFFFFFU, more, 1));
        more = fmaxf(more, __shfl_xor_sync(0xFFFFFFFFU, more, 2));
        // If the row has seen nothing yet, any finite number will do. If the greatest score stays, the sums are kept
        // exactly.
        const float finite = more == -INFINITY ? 0.0F : more;
        const float shift = finite * exponent_scale;
        const float keep = ptx::exp2_approximate((most[g][lower] - finite) * exponent_scale);
        most[g][lower] = more;
        float part = 0.0F;
        ESPALIER_UNROLL
        for (int group = 0; group < slot_groups; ++group) {
          ESPALIER_UNROLL
          for (int e = 0; e < 2; ++e) {
            float& one = of[g][group][2 * lower + e];
            one = ptx::exp2_approximate(fmaf(one, exponent_scale, -shift));
            part += one;
          }
        }
        part += __shfl_xor_sync(0xFFFFFFFFU, part, 1);
        part += __shfl_xor_sync(0xFFFFFFFFU, part, 2);
        total[g][lower] = fmaf(total[g][lower], keep, part);
        // The greatest scores are mostly found early, so this is seldom needed.
        if (__any_sync(0xFFFFFFFFU, keep != 1.0F) != 0) {
          ESPALIER_UNROLL
          for (int d = 0; d < dim / 8; ++d) {
            sum[g][d][2 * lower] *= keep;
            sum[g][d][2 * lower + 1] *= keep;
          }
        }
      }
      ESPALIER_UNROLL
      for (int step = 0; step < tile::slots / 16; ++step) {
        ESPALIER_UNROLL
        for (int i = 0; i < 4; ++i)
          to[g][step][i] =
              ptx::pack<NumberT>(of[g][2 * step + i / 2][2 * (i % 2)], of[g][2 * step + i / 2][2 * (i % 2) + 1]);
      }
    }
  }

  //! Adds the weighted values of a block.
  __device__ void add(const weights& by, ptx::shared_address values) {
    const std::uint32_t lane = threadIdx.x % 32;
    ESPALIER_UNROLL
    for (int step = 0; step < tile::slots / 16; ++step) {
      ESPALIER_UNROLL
      for (int pair = 0; pair < dim / 16; ++pair) {
        std::uint32_t b[4];
        ptx::load_matrices_transposed(b, values + static_cast<std::uint32_t>(16 * step * tile::row_bytes) +
                                             tile::offset(lane % 16, static_cast<std::uint32_t>(2 * pair) + lane / 16));
        ESPALIER_UNROLL
        for (int g = 0; g < row_groups; ++g) {
          ptx::multiply_add<NumberT>(sum[g][2 * pair], by[g][step], b[0], b[1]);
          ptx::multiply_add<NumberT>(sum[g][2 * pair + 1], by[g][step], b[2], b[3]);
        }
      }
    }
  }

  //! Returns the index, in parts and part_scores, of the partial result of a split for a query (a pair of row and
  //! head).
  __device__ static std::int64_t part_of(const attention_arguments<NumberT>& a, const tile_place& place,
                                         std::int32_t query_index, std::int32_t split) {
    return static_cast<std::int64_t>(split) * a.batch.n_rows * a.n_heads + place.out_of(a, query_index);
  }

  //! Sets the sums of row i / 4 + 8 * lower of group g, i being the lane: to the partial result with index `part` if
  //! `goes_on` is set, otherwise to zero.
  __device__ void begin(const attention_arguments<NumberT>& a, std::int64_t part, int g, int lower, bool goes_on) {
    const std::uint32_t column = 2 * (threadIdx.x % 4);
    const part_score score = goes_on ? a.part_scores[part] : part_score{-INFINITY, 0.0F};
    most[g][lower] = score.most;
    total[g][lower] = score.total;
    ESPALIER_UNROLL
    for (int d = 0; d < dim / 8; ++d) {
      const float2 pair = goes_on ? *reinterpret_cast<const float2*>(a.parts + part * dim + 8 * d + column) : float2{};
      sum[g][d][2 * lower] = pair.x;
      sum[g][d][2 * lower + 1] = pair.y;
    }
  }

  //! Writes the partial results of a split for all rows that exist.
  __device__ void write_part(const attention_arguments<NumberT>& a, const tile_place& place, std::int32_t first_query,
                             std::int32_t split) const {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    ESPALIER_UNROLL
    for (int g = 0; g < row_groups; ++g) {
      ESPALIER_UNROLL
      for (int lower = 0; lower < 2; ++lower) {
        const std::int32_t query_index = first_query + 16 * g + 8 * lower + lane / 4;
        if (query_index >= place.n_queries) continue;
        const std::int64_t part = part_of(a, place, query_index, split);
        if (lane % 4 == 0) a.part_scores[part] = {most[g][lower], total[g][lower]};
        if (total[g][lower] == 0.0F) continue;
        ESPALIER_UNROLL
        for (int d = 0; d < dim / 8; ++d) {
          *reinterpret_cast<float2*>(a.parts + part * dim + 8 * d + 2 * (lane % 4)) =
              make_float2(sum[g][d][2 * lower], sum[g][d][2 * lower + 1]);
        }
      }
    }
  }

  //! Writes the means of all rows that exist.
  __device__ void write_means(const attention_arguments<NumberT>& a, const tile_place& place,
                              std::int32_t first_query) const {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    ESPALIER_UNROLL
    for (int g = 0; g < row_groups; ++g) {
      ESPALIER_UNROLL
      for (int lower = 0; lower < 2; ++lower) {
        const std::int32_t query_index = first_query + 16 * g + 8 * lower + lane / 4;
        if (query_index >= place.n_queries || a.batch.sequence_of[place.first_row + place.row_of(query_index)] < 0)
          continue;
        const std::int64_t row_and_head = place.out_of(a, query_index);
        const float factor = mean_factor(a, row_and_head, most[g][lower], total[g][lower]);
        NumberT* const out = a.out + row_and_head * dim + 2 * (lane % 4);
        ESPALIER_UNROLL
        for (int d = 0; d < dim / 8; ++d) {
          *reinterpret_cast<std::uint32_t*>(out + 8 * d) =
              ptx::pack<NumberT>(sum[g][d][2 * lower] * factor, sum[g][d][2 * lower + 1] * factor);
        }
      }
    }
  }
};

//! Waits until the copies of the present step of all threads have arrived: with one stage all copies, with two stages
//! all but each thread's last two groups.
__device__ inline void await_buffer(std::int32_t n_stages) {
  if (n_stages == 1) {
    ptx::copy_async_wait<0>();
  } else {
    ptx::copy_async_wait<2>();
  }
  __syncthreads();
}

//! A word whose lowest n bits are set; n may have any value.
__device__ inline std::uint32_t first_bits(std::int32_t n) {
  return n >= 32 ? ~0U : n <= 0 ? 0U : (1U << n) - 1U;
}

//! Computes attention of a tile of rows over one split of the context, on tensor cores. With a.by_position, the tile
//! works only on the blocks of which all its rows see every slot.
//!
//! Blocks of 64 keys and of 64 values follow each other through two or four buffers. While one buffer is worked on, the
//! next ones are being filled. One barrier for each buffer tells that it is full and that the one before is free.
//! Scores and weights stay in registers. A warp whose rows see nothing of a block skips it.
//!
//! Shapes      grid: tiles, splits, key-value heads
template <class NumberT, int dim, int row_groups>
ESPALIER_KERNEL __launch_bounds__(128, 2) void tile_attention(attention_arguments<NumberT> a) {
  using tile = attention_tile<NumberT, dim, row_groups>;
  using warp_state = warp_attention<NumberT, dim, row_groups>;
  ptx::allow_next();
  ptx::await_previous();
  const tile_place place = find_tile(a, static_cast<std::int32_t>(blockIdx.x), tile::rows);
  if (place.n_queries == 0) return;
  const auto split = static_cast<std::int32_t>(blockIdx.y);
  const auto thread = static_cast<std::int32_t>(threadIdx.x);

  // Shared memory: queries; keys and values of each stage; masks of two blocks; then the arrays that tile_blocks points
  // to.
  unsigned char* const memory = shared_memory();
  const ptx::shared_address query_address = ptx::address_of(memory);
  const ptx::shared_address key_address = query_address + static_cast<std::uint32_t>(tile::query_bytes);
  const auto stage = [&](std::int32_t turn) {
    return key_address + static_cast<std::uint32_t>(turn & (a.n_stages - 1)) * (2 * tile::buffer_bytes);
  };
  auto* const masks = reinterpret_cast<std::uint32_t*>(memory + tile::query_bytes +
                                                       static_cast<std::size_t>(2 * a.n_stages) * tile::buffer_bytes);
  auto* const seen = masks + tile::mask_bytes / sizeof(std::uint32_t);

  for (std::int32_t i = thread; i < tile::rows * tile::chunks; i += tile::threads) {
    const std::int32_t query = i / tile::chunks, chunk = i % tile::chunks;
    const bool there = query < place.n_queries;
    const std::int64_t row = there ? place.first_row + place.row_of(query) : place.first_row;
    const std::int32_t head = place.kv_head * place.group + (there ? place.head_of(query) : 0);
    ptx::copy_async_16(
        query_address + tile::offset(static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(chunk)),
        a.queries + row * a.query_stride + head * dim + 8 * chunk, there);
  }
  const tile_blocks blocks =
      a.by_position
          ? find_whole_blocks(place, a.batch, seen, a.seen_words)
          : find_blocks(place, a.batch, seen, reinterpret_cast<std::int32_t*>(seen + a.seen_words), a.seen_words);
  if (a.by_position && split == 0) {
    for (std::int32_t query = thread; query < place.n_queries; query += tile::threads)
      a.whole_blocks[place.out_of(a, query)] = blocks.n_first;
  }
  const tile_turns turns(a, blocks, split);

  slot_copier<NumberT, tile> copier(a.kv, place, blocks);
  // The mask row of the query whose bits this thread copies, if there is one.
  const bool has_mask = thread < place.n_queries && a.batch.sequence_of[place.first_row + place.row_of(thread)] >= 0;
  const std::uint32_t* const mask_row =
      a.batch.mask + place.sequence.mask_begin +
      (place.first_row - place.sequence.row_begin + (has_mask ? place.row_of(thread) : 0)) * place.sequence.mask_words;
  const auto mask_of = [&](std::int32_t turn, std::int32_t query) {
    return masks + ((turn & 1) * tile::rows + query) * 2;
  };
  const auto copy_keys = [&](std::int32_t turn) {
    if (turn < turns.n) {
      const std::int32_t block = turns.block(turn);
      copier.keys(stage(turn), block);
      if (block >= blocks.n_first && thread < tile::rows) {
        const std::int32_t word = 2 * blocks.listed[block - blocks.n_first];
        for (std::int32_t e = 0; e < 2; ++e) {
          const bool there = has_mask && word + e < place.sequence.mask_words;
          ptx::copy_async_4(ptx::address_of(mask_of(turn, thread) + e), mask_row + (there ? word + e : 0), there);
        }
      }
    }
    ptx::copy_async_commit();
  };
  const auto copy_values = [&](std::int32_t turn) {
    if (turn < turns.n) copier.values(stage(turn) + tile::buffer_bytes);
    ptx::copy_async_commit();
  };
  copy_keys(0);
  if (a.n_stages == 2) {
    copy_values(0);
    copy_keys(1);
  }

  const std::int32_t first_query = thread / 32 * tile::warp_rows;
  warp_state state(query_address + static_cast<std::uint32_t>(first_query) * tile::row_bytes);
  for (std::int32_t turn = 0; turn < turns.n; ++turn) {
    await_buffer(a.n_stages);
    if (turn == 0) state.keep_queries();
    copy_values(turn + a.n_stages - 1);

    // seen_by() returns one bit for each slot of the block, set if a row of this lane sees the slot.
    const std::int32_t block = turns.block(turn);
    const bool in_tree = block >= blocks.n_first;
    const std::int32_t left = blocks.first_end - 64 * block;
    const auto seen_by = [&](int g, int lower) {
      if (!in_tree) return make_uint2(first_bits(left), first_bits(left - 32));
      return *reinterpret_cast<const uint2*>(mask_of(turn, first_query + 16 * g + 8 * lower + thread % 32 / 4));
    };
    bool works = first_query < place.n_queries;
    if (works && in_tree) {
      std::uint32_t any = 0;
      for (int g = 0; g < row_groups; ++g) {
        for (int lower = 0; lower < 2; ++lower) {
          const uint2 bits = seen_by(g, lower);
          any |= bits.x | bits.y;
        }
      }
      works = __any_sync(0xFFFFFFFFU, any != 0) != 0;
    }
    typename warp_state::weights weights;
    if (works) {
      typename warp_state::scores scores = {};
      state.score(scores, stage(turn));
      if (in_tree || left < 64) {
        ESPALIER_UNROLL
        for (int g = 0; g < row_groups; ++g) {
          warp_state::hide(scores, g, 0, seen_by(g, 0));
          warp_state::hide(scores, g, 1, seen_by(g, 1));
        }
      }
      state.weigh(weights, scores, a.exponent_scale);
    }

    await_buffer(a.n_stages);
    copy_keys(turn + a.n_stages);
    if (works) state.add(weights, stage(turn) + tile::buffer_bytes);
  }
  ptx::copy_async_wait<0>();
  if (first_query >= place.n_queries) return;
  if (a.n_splits > 1 || a.by_position) {
    state.write_part(a, place, first_query, split);
  } else {
    state.write_means(a, place, first_query);
  }
}

}  // namespace espalier::cuda::detail
