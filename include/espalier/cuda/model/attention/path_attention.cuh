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
#include "espalier/cuda/model/attention/attention_merge.cuh"
#include "espalier/cuda/model/attention/attention_tile.cuh"
#include "espalier/cuda/model/attention/row_keys.cuh"
#include "espalier/cuda/model/attention/tile_attention.cuh"
#include "espalier/cuda/model/attention/warpgroup_tile.cuh"

namespace espalier::cuda::detail {

//! A TeamT of path_attention: one warp, which computes the sums of up to 16 query heads of one row.
template <class NumberT, int dim>
struct path_warp {
  using tile = attention_tile<NumberT, dim, 1>;
  using sums = warp_attention<NumberT, dim, 1>;
  static constexpr bool compiled = true;
  static constexpr int threads = 32;
  static constexpr int queries = tile::warp_rows;
  static constexpr std::uint32_t alignment = 16;
  static constexpr std::int32_t max_teams = 512 / dim;  // at most position_splits, and a power of two

  static __device__ std::uint32_t unaligned(const unsigned char*) { return 0; }
  __device__ static void meet(std::int32_t) { __syncwarp(); }
  __device__ static void meet_with_copies(std::int32_t) { __syncwarp(); }
  __device__ static void keep_queries(sums& of) { of.keep_queries(); }
  __device__ static void score(const sums& by, typename sums::scores& to, ptx::shared_address keys) {
    by.score(to, keys);
  }
  __device__ static void add(sums& to, const typename sums::weights& by, ptx::shared_address values) {
    to.add(by, values);
  }
};

//! A TeamT of path_attention: one warpgroup, which computes the sums of up to 64 query heads of one row by wgmma. It
//! continues sums of warpgroup_attention, which uses wgmma, too. A product by wgmma always has 64 rows; those beyond
//! the group's heads are zero.
template <class NumberT, int dim>
struct path_warpgroup {
  using tile = warpgroup_tile<NumberT, dim>;
  using sums = warpgroup_sums<NumberT, dim>;
  static constexpr bool compiled = ptx::has_warpgroup_products;
  static constexpr int threads = tile::group_threads;
  static constexpr int queries = tile::group_rows;
  static constexpr std::uint32_t alignment = tile::alignment;
  static constexpr std::int32_t max_teams = 4;

  static __device__ std::uint32_t unaligned(const unsigned char* memory) { return tile::unaligned(memory); }
  __device__ static void meet(std::int32_t team) { ptx::await_threads(static_cast<std::uint32_t>(1 + team), threads); }
  __device__ static void meet_with_copies(std::int32_t team) {
    ptx::show_to_products();
    meet(team);
  }
  __device__ static void keep_queries(sums&) {}
  __device__ static void score(const sums& by, typename sums::scores& to, ptx::shared_address keys) {
    by.start_scores(to, keys);
    ptx::products_wait(to[0]);
  }
  __device__ static void add(sums& to, const typename sums::weights& by, ptx::shared_address values) {
    to.start_add(by, values);
    ptx::products_wait(to.sum[0]);
  }
};

//! The sizes of path_attention.
template <class NumberT, int dim, class TeamT>
struct path_tile {
  using tile = typename TeamT::tile;
  static constexpr int threads = TeamT::max_teams * TeamT::threads;
  static constexpr std::size_t query_bytes = std::size_t{TeamT::queries} * tile::row_bytes;
  static constexpr std::size_t team_bytes = std::size_t{2} * tile::buffer_bytes;

  static constexpr std::size_t shared_bytes(std::int32_t teams) {
    return TeamT::alignment - 16 + query_bytes +
           static_cast<std::size_t>(teams) * (team_bytes + row_keys::block * sizeof(std::int32_t));
  }
};

//! The order in which a team takes the blocks of 64 keys: split by split.
struct path_order {
  std::int32_t begin, end;     // the blocks that the row itself sums
  std::int32_t team, n_teams;  // this team has splits team, team + n_teams, ...

  //! The first block of the split, or of the team's next split that has a block; `end` if there is none.
  __device__ std::int32_t first(std::int32_t split) const {
    for (; split < position_splits; split += n_teams) {
      const std::int32_t block = begin + (split + position_splits - begin % position_splits) % position_splits;
      if (block < end) return block;
    }
    return end;
  }
  __device__ std::int32_t next(std::int32_t block) const {
    const std::int32_t follower = block + position_splits;
    return follower < end ? follower : first(block % position_splits + n_teams);
  }
};

//! Computes attention by position for one row: sums the blocks of 64 keys that the row's tile has not summed, and then
//! merges all splits. Keys are added in the same order wherever they are stored, so a block gives the same bits here as
//! in a tile.
//!
//! A team sums whole splits. While it works on a block's keys, the values of this block are being copied; while it
//! works on the values, the keys of the next block are being copied.
//!
//! Shapes      grid: rows, key-value heads, groups of TeamT::queries heads that share keys and values
//! Complexity  a row reads its blocks' keys and values itself, once for each key-value head and group of query heads
template <class NumberT, int dim, class TeamT>
__device__ void attend_path(const attention_arguments<NumberT>& a) {
  using sizes = path_tile<NumberT, dim, TeamT>;
  using tile = typename sizes::tile;
  using sums = typename TeamT::sums;
  ptx::await_previous();
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  if (a.batch.sequence_of[row] < 0) return;
  const auto thread = static_cast<std::int32_t>(threadIdx.x), lane = thread % 32, team = thread / TeamT::threads,
             member = thread % TeamT::threads, n_teams = static_cast<std::int32_t>(blockDim.x) / TeamT::threads;
  const std::int32_t first_query = member / 32 * 16;  // first query of this warp

  tile_place place = {};
  place.first_row = row;
  place.first_head = TeamT::queries * static_cast<std::int32_t>(blockIdx.z);
  place.n_queries = a.group - place.first_head < TeamT::queries ? a.group - place.first_head : TeamT::queries;
  place.group = a.group;
  place.kv_head = static_cast<std::int32_t>(blockIdx.y);

  // Shared memory: queries; keys and values of each team; positions in the cache of each team's keys.
  unsigned char* const unaligned = shared_memory();
  unsigned char* const memory = unaligned + TeamT::unaligned(unaligned);
  const ptx::shared_address query_address = ptx::address_of(memory);
  const ptx::shared_address key_address =
      query_address + static_cast<std::uint32_t>(sizes::query_bytes) +
      static_cast<std::uint32_t>(team) * static_cast<std::uint32_t>(sizes::team_bytes);
  const ptx::shared_address value_address = key_address + static_cast<std::uint32_t>(tile::buffer_bytes);
  auto* const rows = reinterpret_cast<std::int32_t*>(memory + sizes::query_bytes +
                                                     static_cast<std::size_t>(n_teams) * sizes::team_bytes) +
                     team * row_keys::block;

  for (std::int32_t i = thread; i < TeamT::queries * tile::chunks; i += TeamT::threads * n_teams) {
    const std::int32_t query = i / tile::chunks, chunk = i % tile::chunks;
    const bool there = query < place.n_queries;
    const std::int32_t head = place.kv_head * place.group + place.first_head + (there ? query : 0);
    ptx::copy_async_16(
        query_address + tile::offset(static_cast<std::uint32_t>(query), static_cast<std::uint32_t>(chunk)),
        a.queries + static_cast<std::int64_t>(row) * a.query_stride + head * dim + 8 * chunk, there);
  }

  // Returns how many blocks a kernel for tiles has summed for a query head. Heads of one row may be in different tiles.
  const auto summed = [&](std::int32_t query) {
    if (a.whole_blocks == nullptr) return 0;
    return a.whole_blocks[place.out_of(a, query < place.n_queries ? query : 0)];
  };
  const std::int32_t own_begin[2] = {summed(first_query + lane / 4), summed(first_query + lane / 4 + 8)};
  path_order order{summed(lane % TeamT::queries), 0, team, n_teams};
  for (int query = lane + 32; query < TeamT::queries; query += 32)
    order.begin = summed(query) < order.begin ? summed(query) : order.begin;
  for (int step = 1; step < 32; step *= 2) {
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
      for (std::int32_t i = 0; i < tile::slots * tile::chunks / TeamT::threads; ++i) {
        const std::int32_t key = (TeamT::threads * i + member) / tile::chunks, chunk = member % tile::chunks;
        const std::int32_t at = rows[key];
        ptx::copy_async_16(to + tile::offset(static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(chunk)),
                           from + static_cast<std::int64_t>(at < 0 ? 0 : at) * a.kv.row_size + 8 * chunk, at >= 0);
      }
    }
    ptx::copy_async_commit();
  };
  const auto list = [&](std::int32_t block) {
    if (block < order.end && member < 32) keys.list(a.kv, block, rows);
    if constexpr (TeamT::threads > 32) TeamT::meet(team);
  };

  std::int32_t block = order.first(team);
  list(block);
  copy(key_address, first_key, block);
  copy(value_address, first_key + to_values, block);
  ptx::copy_async_wait<1>();
  TeamT::meet_with_copies(team);
  __syncthreads();  // the queries have arrived

  sums state(query_address);
  // Starts a split from the sums that the head's tile has written for it, or from zero.
  const auto begin = [&](std::int32_t split, int lower) {
    const std::int32_t query = first_query + lane / 4 + 8 * lower;
    state.begin(a, sums::part_of(a, place, query < place.n_queries ? query : 0, split), 0, lower,
                query < place.n_queries && split < own_begin[lower]);
  };
  if (block < order.end) TeamT::keep_queries(state);
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
    TeamT::meet_with_copies(team);
    typename sums::scores scores = {};
    typename sums::weights weights;
    TeamT::score(state, scores, key_address);
    ESPALIER_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      const bool open = block >= own_begin[lower];
      sums::hide(scores, 0, lower, make_uint2(open ? first_bits(left) : 0U, open ? first_bits(left - 32) : 0U));
    }
    TeamT::meet(team);
    list(next);
    copy(key_address, first_key, next);
    state.weigh(weights, scores, a.exponent_scale);
    ptx::copy_async_wait<1>();
    TeamT::meet_with_copies(team);
    TeamT::add(state, weights, value_address);
    // If a head's tile has summed this block already, restores the head's sums.
    ESPALIER_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      if (block < own_begin[lower]) begin(split, lower);
    }
    TeamT::meet(team);
    copy(value_address, first_key + to_values, next);
    begins = next >= order.end || next % position_splits != split;
    if (begins) state.write_part(a, place, first_query, split);
    block = next;
  }
  ptx::copy_async_wait<0>();
  __syncthreads();
  const std::int32_t n_parts = order.end < position_splits ? order.end : position_splits;
  for (std::int32_t query = thread / 32; query < place.n_queries; query += static_cast<std::int32_t>(blockDim.x) / 32)
    merge_parts(a, place.out_of(a, query), n_parts);
}

//! The kernel of attend_path. If the team's products are not compiled, the kernel is empty and has launch bounds of 32
//! threads.
template <class NumberT, int dim, class TeamT>
ESPALIER_KERNEL __launch_bounds__(TeamT::compiled ? path_tile<NumberT, dim, TeamT>::threads : 32,
                                  1) void path_attention(attention_arguments<NumberT> a) {
  if constexpr (TeamT::compiled) attend_path<NumberT, dim, TeamT>(a);
}

}  // namespace espalier::cuda::detail
