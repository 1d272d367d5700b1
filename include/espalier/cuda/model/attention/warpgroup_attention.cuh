// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/attention/tree_attention.cu
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"
#include "espalier/cuda/model/attention/attention_tile.cuh"
#include "espalier/cuda/model/attention/tile_attention.cuh"
#include "espalier/cuda/model/attention/warpgroup_tile.cuh"

namespace espalier::cuda::detail {

//! Starts to copy two words of the mask of a tile's query; zeros if there is no such query or word, or if the query's
//! row is padding.
template <class NumberT>
__device__ void copy_mask(const attention_arguments<NumberT>& a, const tile_place& place, std::int32_t query,
                          std::int32_t word, std::uint32_t* to) {
  const batch_sequence& s = place.sequence;
  const std::int32_t row = place.first_row + place.row_of(query);
  const bool is_row = query < place.n_queries && a.batch.sequence_of[row] >= 0;
  const std::uint32_t* const mask = a.batch.mask + s.mask_begin;
  for (std::int32_t e = 0; e < 2; ++e) {
    const bool there = is_row && word + e < s.mask_words;
    ptx::copy_async_4(ptx::address_of(to + e), mask + (there ? (row - s.row_begin) * s.mask_words + word + e : 0),
                      there);
  }
}

//! Computes what tile_attention computes, by wgmma, if it is compiled for sm_90a. Otherwise the kernel is empty and has
//! launch bounds of 32 threads, by which tree_attention recognises it.
//!
//! Shapes      grid: tiles, splits, key-value heads
template <class NumberT, int dim>
ESPALIER_KERNEL __launch_bounds__(ptx::has_warpgroup_products ? warpgroup_tile<NumberT, dim>::threads : 32,
                                  1) void warpgroup_attention(attention_arguments<NumberT> a) {
  if constexpr (ptx::has_warpgroup_products) {
    using tile = warpgroup_tile<NumberT, dim>;
    using sums = warpgroup_sums<NumberT, dim>;
    ptx::allow_next();
    ptx::await_previous();
    const tile_place place = find_tile(a, static_cast<std::int32_t>(blockIdx.x), tile::rows);
    if (place.n_queries == 0) return;
    const auto split = static_cast<std::int32_t>(blockIdx.y);
    const auto thread = static_cast<std::int32_t>(threadIdx.x), warp = thread / 32, lane = thread % 32;

    // Shared memory: queries, 64 rows for each warpgroup; buffers; masks; counters; the arrays that tile_blocks points
    // to.
    unsigned char* const unaligned = shared_memory();
    unsigned char* const memory = unaligned + tile::unaligned(unaligned);
    const ptx::shared_address query_address = ptx::address_of(memory);
    const ptx::shared_address buffers = query_address + static_cast<std::uint32_t>(tile::query_bytes);
    auto* const masks = reinterpret_cast<std::uint32_t*>(memory + tile::query_bytes +
                                                         std::size_t{tile::n_buffers} * tile::buffer_bytes);
    const ptx::shared_address counters = query_address + static_cast<std::uint32_t>(tile::copied_bytes);
    auto* const seen = reinterpret_cast<std::uint32_t*>(memory + tile::copied_bytes) + 4 * tile::n_buffers;
    // Buffers are used in turn: use u holds keys if u is even, values if it is odd. Each buffer has a counter that
    // tells that it is full, and one that tells that it is free again.
    const auto buffer = [&](std::uint32_t use) { return buffers + use % tile::n_buffers * tile::buffer_bytes; };
    const auto full = [&](std::uint32_t use) { return counters + use % tile::n_buffers * 8; };
    const auto free = [&](std::uint32_t use) { return full(use) + tile::n_buffers * 8; };
    const auto keys_of = [](std::int32_t turn) { return static_cast<std::uint32_t>(2 * turn); };
    const auto parity = [](std::uint32_t use) { return use / tile::n_buffers & 1U; };
    const auto mask_of = [&](std::int32_t turn, std::int32_t query) {
      return masks + (turn % static_cast<std::int32_t>(tile::n_buffers / 2) * tile::rows + query) * 2;
    };

    for (std::int32_t i = thread; i < tile::rows * tile::chunks; i += tile::threads) {
      const std::int32_t query = i / tile::chunks, chunk = i % tile::chunks;
      const bool there = query < place.n_queries;
      const std::int64_t row = there ? place.first_row + place.row_of(query) : place.first_row;
      const std::int32_t head = place.kv_head * place.group + (there ? place.head_of(query) : 0);
      ptx::copy_async_16(
          query_address + static_cast<std::uint32_t>(query / tile::group_rows * tile::group_rows * tile::row_bytes) +
              tile::offset(static_cast<std::uint32_t>(query % tile::group_rows), static_cast<std::uint32_t>(chunk)),
          a.queries + row * a.query_stride + head * dim + 8 * chunk, there);
    }
    ptx::copy_async_commit();
    const std::int32_t n_groups = (place.n_queries + tile::group_rows - 1) / tile::group_rows;  // groups that have rows
    if (thread == 0) {
      for (std::uint32_t use = 0; use < tile::n_buffers; ++use) {
        ptx::begin_arrivals(full(use), tile::warps);
        ptx::begin_arrivals(free(use), static_cast<std::uint32_t>(n_groups * tile::warps));
      }
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
    ptx::copy_async_wait<0>();
    ptx::show_to_products();
    __syncthreads();

    if (warp < tile::warps) {
      // This warpgroup copies keys and values.
      ptx::give_registers<tile::copier_registers>();
      slot_copier<NumberT, tile> copier(a.kv, place, blocks);
      std::uint32_t use = 0;
      const auto tell = [&](std::uint32_t of) {
        ptx::show_to_products();
        __syncwarp();
        if (lane == 0) ptx::arrive(full(of));
      };
      const auto await_free = [&] {
        if (use >= tile::n_buffers) ptx::await_arrivals(free(use), parity(use - tile::n_buffers));
      };
      const auto end_copy = [&] {
        ptx::copy_async_commit();
        ptx::copy_async_wait<tile::under_way>();
        if (use >= tile::under_way) tell(use - tile::under_way);
        ++use;
      };
      for (std::int32_t turn = 0; turn < turns.n; ++turn) {
        const std::int32_t block = turns.block(turn);
        await_free();
        copier.keys(buffer(use), block);
        if (block >= blocks.n_first) {
          for (std::int32_t query = thread; query < tile::rows; query += tile::group_threads)
            copy_mask(a, place, query, 2 * blocks.listed[block - blocks.n_first], mask_of(turn, query));
        }
        end_copy();
        await_free();
        copier.values(buffer(use));
        end_copy();
      }
      ptx::copy_async_wait<0>();
      for (std::uint32_t of = use < tile::under_way ? 0 : use - tile::under_way; of < use; ++of)
        tell(of);
      return;
    }

    ptx::take_registers<tile::group_registers>();
    const std::int32_t group = warp / tile::warps - 1;
    if (group >= n_groups) return;
    const std::int32_t group_query = group * tile::group_rows;               // first query of the warpgroup
    const std::int32_t first_query = group_query + warp % tile::warps * 16;  // first query of the warp
    const std::int32_t own_query = first_query + lane / 4;                   // first query of the lane
    const auto release = [&](std::uint32_t use) {
      __syncwarp();
      if (lane == 0) ptx::arrive(free(use));
    };
    // True if some row of the warpgroup sees a slot of the turn's block; the same in all threads of the warpgroup.
    const auto sees = [&](std::int32_t turn) {
      if (turns.block(turn) < blocks.n_first) return true;
      const auto bits = *reinterpret_cast<const uint4*>(mask_of(turn, group_query + 2 * lane));
      return __any_sync(0xFFFFFFFFU, (bits.x | bits.y | bits.z | bits.w) != 0) != 0;
    };
    // Returns the first turn, from the given one on, of whose block the warpgroup sees something, and waits for its
    // keys. Releases the buffers of the turns before it.
    const auto next_seen = [&](std::int32_t turn) {
      for (; turn < turns.n; ++turn) {
        const std::uint32_t use = keys_of(turn);
        ptx::await_arrivals(full(use), parity(use));
        if (sees(turn)) break;
        release(use);
        ptx::await_arrivals(full(use + 1), parity(use + 1));
        release(use + 1);
      }
      return turn;
    };
    sums state(query_address + static_cast<std::uint32_t>(group_query) * tile::row_bytes);
    typename sums::scores scores;
    typename sums::weights weights;
    const auto weigh = [&](std::int32_t turn) {
      const std::int32_t block = turns.block(turn), left = blocks.first_end - 64 * block;
      const bool in_tree = block >= blocks.n_first;
      if (in_tree || left < 64) {
        ESPALIER_UNROLL
        for (int lower = 0; lower < 2; ++lower) {
          sums::hide(scores, 0, lower,
                     in_tree ? *reinterpret_cast<const uint2*>(mask_of(turn, own_query + 8 * lower))
                             : make_uint2(first_bits(left), first_bits(left - 32)));
        }
      }
      release(keys_of(turn));
      state.weigh(weights, scores, a.exponent_scale);
    };
    for (std::int32_t turn = next_seen(0); turn < turns.n; turn = next_seen(turn + 1)) {
      state.start_scores(scores, buffer(keys_of(turn)));
      ptx::products_wait(scores[0]);
      weigh(turn);
      for (;; ++turn) {
        ptx::await_arrivals(full(keys_of(turn) + 1), parity(keys_of(turn) + 1));
        if (turn + 1 == turns.n) break;
        ptx::await_arrivals(full(keys_of(turn + 1)), parity(keys_of(turn + 1)));
        if (!sees(turn + 1)) break;
        state.start_add(weights, buffer(keys_of(turn) + 1));
        state.start_scores(scores, buffer(keys_of(turn + 1)));
        ptx::products_wait(state.sum[0], scores[0]);
        release(keys_of(turn) + 1);
        weigh(turn + 1);
      }
      state.start_add(weights, buffer(keys_of(turn) + 1));
      ptx::products_wait(state.sum[0]);
      release(keys_of(turn) + 1);
    }
    if (first_query >= place.n_queries) return;
    if (a.n_splits > 1 || a.by_position) {
      state.write_part(a, place, first_query, split);
    } else {
      state.write_means(a, place, first_query);
    }
  }
}

}  // namespace espalier::cuda::detail
