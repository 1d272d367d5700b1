// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/model/llama/persistent_pass/pass_job.cuh"

namespace espalier::cuda::detail {

// Attention of a persistent pass. The keys that a row sees are numbered by their position in the row's text: key p of
// the prefix is in slot p; the keys after the prefix are in the slots that the set bits of the row's mask show, in
// order. Keys are summed in blocks of 16: warp w takes blocks w, w + pass_warps, ..., and the sums of the warps are
// merged in order. So a row's bits depend on its text alone, and not on which of its keys lie in a tree.

inline constexpr int pass_queries = 16;  // pairs of row and query head for which one block of threads works
inline constexpr int pass_keys = 16;     // keys that are summed together, as one block of keys

template <int dim>
inline constexpr int pass_value_stride = 2 * dim + 16;  // bytes from one value to the next; eight values
                                                        // in a row lie in different banks

// Returns how many bytes of pass_memory::work attention needs.
template <int dim>
constexpr std::size_t attention_work_bytes() {
  constexpr std::size_t values = std::size_t{pass_warps} * pass_keys * pass_value_stride<dim>;
  constexpr std::size_t sums = std::size_t{pass_warps} * pass_queries * (dim + 2) * sizeof(float);
  return values > sums ? values : sums;
}

// Returns the column of set bit number k, from 0, of a row's mask; -1 if no more than k bits are set. Called by a whole
// warp; each lane has its own k, 0 or more.
__device__ inline std::int32_t find_column(const std::uint32_t* mask, std::int32_t words, std::int32_t k) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  std::int32_t column = -1;
  for (std::int32_t first = 0; first < words; first += 32) {
    const std::uint32_t word = first + lane < words ? mask[first + lane] : 0;
    std::int32_t upto = __popc(word);
    for (int step = 1; step < 32; step *= 2) {
      const std::int32_t below = __shfl_up_sync(0xFFFFFFFFU, upto, step);
      if (lane >= step) upto += below;
    }
    std::int32_t at = 0;  // the first word of these 32 up to whose end more than k bits are set
    for (int step = 16; step > 0; step /= 2) {
      if (__shfl_sync(0xFFFFFFFFU, upto, at + step - 1) <= k) at += step;
    }
    std::uint32_t bits = __shfl_sync(0xFFFFFFFFU, word, at % 32);
    std::int32_t left = k - (__shfl_sync(0xFFFFFFFFU, upto, at % 32) - __popc(bits));
    const std::int32_t all = __shfl_sync(0xFFFFFFFFU, upto, 31);
    if (column < 0 && k < all) {
      std::int32_t bit = 0;
      for (int width = 16; width > 0; width /= 2) {
        const std::int32_t low = __popc(bits & ((1U << width) - 1U));
        if (left < low) continue;
        left -= low, bits >>= width, bit += width;
      }
      column = 32 * (first + at) + bit;
    }
    k -= all;
    if (__all_sync(0xFFFFFFFFU, column >= 0 || k < 0) != 0) break;
  }
  return column;
}

// Computes attention for rows [first_row, first_row + n_rows) of the batch and one key-value head, by one block of
// threads.
template <class NumberT, int dim>
struct pass_attention {
  static constexpr int chunks = dim / pass_chunk;
  static_assert(dim % pass_chunk == 0);

  const pass_row* rows;
  const std::uint32_t* mask;
  const NumberT* queries;
  std::int32_t query_stride;
  kv_view<NumberT> kv;  // its data begin at this layer
  NumberT* attended;
  std::int32_t n_heads;
  std::int32_t group;
  float exponent_scale;  // scores times this are exponents of 2

  std::int32_t kv_head;
  std::int32_t first_row;
  std::int32_t n_rows;

  // The state of this warp. Lane i holds a part of the state of queries i / 4 and i / 4 + 8.
  std::uint32_t query[chunks][2][4] = {};
  float sum[dim / 8][4] = {};
  float most[2] = {-INFINITY, -INFINITY};
  float total[2] = {};

  __device__ std::int32_t row_of(std::int32_t q) const { return first_row + q / group; }
  __device__ std::int32_t head_of(std::int32_t q) const { return kv_head * group + q % group; }
  __device__ bool is_query(std::int32_t q) const { return q < n_rows * group && rows[row_of(q)].sequence >= 0; }

  __device__ void load_queries() {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    ESPALIER_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      const std::int32_t q = lane / 4 + 8 * lower;
      if (!is_query(q)) continue;
      const NumberT* const from =
          queries + static_cast<std::int64_t>(row_of(q)) * query_stride + head_of(q) * dim + lane % 4 * 8;
      ESPALIER_UNROLL
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const uint4 run = *reinterpret_cast<const uint4*>(from + chunk * pass_chunk);
        query[chunk][0][lower] = run.x, query[chunk][0][2 + lower] = run.y;
        query[chunk][1][lower] = run.z, query[chunk][1][2 + lower] = run.w;
      }
    }
  }

  // Adds a block of keys to the sums of row `only_row`, or of all rows if only_row is -1. `values` is this warp's
  // memory for the values of the keys. The block is summed by itself first, and then added to the sums of those rows
  // alone. It could not be added to the other rows with weights of 0, because 0 times infinity or NaN is not 0.
  __device__ void add_block(std::int32_t block, std::int32_t only_row, ptx::shared_address values) {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    const std::int32_t own = block * pass_keys + lane % pass_keys;
    std::int32_t cache_row = -1;
    {
      const pass_row row = rows[first_row + (only_row < 0 ? 0 : only_row)];
      std::int32_t slot = own;
      if (only_row >= 0 && (block + 1) * pass_keys > row.straight) {
        const std::int32_t column =
            find_column(mask + row.mask_begin, row.mask_words, own < row.prefix ? 0 : own - row.prefix);
        if (own >= row.straight) slot = row.prefix + column;
      }
      if (only_row < 0 || own < row.seen) cache_row = static_cast<std::int32_t>(kv.row(row.sequence, slot));
    }
    const NumberT* const head = kv.data + kv_head * dim;
    std::uint32_t key[2][chunks][4];
    ESPALIER_UNROLL
    for (int n = 0; n < 2; ++n) {
      const std::int32_t at = __shfl_sync(0xFFFFFFFFU, cache_row, 8 * n + lane / 4);
      const NumberT* const from = head + static_cast<std::int64_t>(at < 0 ? 0 : at) * kv.row_size + lane % 4 * 8;
      ESPALIER_UNROLL
      for (int chunk = 0; chunk < chunks; ++chunk) {
        const uint4 run = at < 0 ? uint4{} : *reinterpret_cast<const uint4*>(from + chunk * pass_chunk);
        key[n][chunk][0] = run.x, key[n][chunk][1] = run.y, key[n][chunk][2] = run.z, key[n][chunk][3] = run.w;
      }
    }
    const std::int64_t to_values = static_cast<std::int64_t>(kv.page_size) * kv.row_size;
    ESPALIER_UNROLL
    for (int i = 0; i < pass_keys * (dim / 8) / 32; ++i) {
      const std::int32_t piece = lane + 32 * i, place = piece / (dim / 8), run = piece % (dim / 8);
      const std::int32_t at = __shfl_sync(0xFFFFFFFFU, cache_row, place);
      ptx::copy_async_16(values + static_cast<std::uint32_t>(place * pass_value_stride<dim> + 16 * run),
                         head + to_values + static_cast<std::int64_t>(at < 0 ? 0 : at) * kv.row_size + 8 * run,
                         at >= 0);
    }
    ptx::copy_async_commit();

    float score[2][4] = {};
    ESPALIER_UNROLL
    for (int n = 0; n < 2; ++n) {
      ESPALIER_UNROLL
      for (int chunk = 0; chunk < chunks; ++chunk) {
        ptx::multiply_add<NumberT>(score[n], query[chunk][0], key[n][chunk][0], key[n][chunk][1]);
        ptx::multiply_add<NumberT>(score[n], query[chunk][1], key[n][chunk][2], key[n][chunk][3]);
      }
    }
    bool sees[2];
    float keep[2];
    weigh(score, sees, keep, block, only_row);
    const std::uint32_t weights[4] = {
        ptx::pack<NumberT>(score[0][0], score[0][1]), ptx::pack<NumberT>(score[0][2], score[0][3]),
        ptx::pack<NumberT>(score[1][0], score[1][1]), ptx::pack<NumberT>(score[1][2], score[1][3])};

    ptx::copy_async_wait<0>();
    __syncwarp();
    const std::uint32_t place = static_cast<std::uint32_t>(lane % 16), right = static_cast<std::uint32_t>(lane / 16);
    ESPALIER_UNROLL
    for (std::uint32_t d = 0; d < dim / 8; d += 2) {
      std::uint32_t value[4];
      ptx::load_matrices_transposed(value, values + place * pass_value_stride<dim> + 16 * (d + right));
      float part[2][4] = {};
      ptx::multiply_add<NumberT>(part[0], weights, value[0], value[1]);
      ptx::multiply_add<NumberT>(part[1], weights, value[2], value[3]);
      ESPALIER_UNROLL
      for (std::uint32_t i = 0; i < 8; ++i) {
        const std::uint32_t lower = i % 4 / 2;
        float& of = sum[d + i / 4][i % 4];
        if (sees[lower]) of = fmaf(of, keep[lower], part[i / 4][i % 4]);
      }
    }
    __syncwarp();
  }

  // Turns scores into weights, which are 0 where a row does not see the key. sees[k] becomes true if the block is for
  // the row of this lane's query k; keep[k] becomes the factor that brings the sums so far to the scale of the weights.
  __device__ void weigh(float (&score)[2][4], bool (&sees)[2], float (&keep)[2], std::int32_t block,
                        std::int32_t only_row) {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    ESPALIER_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      const std::int32_t q = lane / 4 + 8 * lower;
      sees[lower] = is_query(q) && (only_row < 0 || q / group == only_row);
      const std::int32_t seen = sees[lower] ? rows[row_of(q)].seen : 0;
      float more = most[lower];
      ESPALIER_UNROLL
      for (int n = 0; n < 2; ++n) {
        ESPALIER_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& one = score[n][2 * lower + e];
          one = block * pass_keys + 8 * n + lane % 4 * 2 + e < seen ? one : -INFINITY;
          more = fmaxf(more, one);
        }
      }
      more = fmaxf(more, __shfl_xor_sync(0xFFFFFFFFU, more, 1));
      more = fmaxf(more, __shfl_xor_sync(0xFFFFFFFFU, more, 2));
      const float finite = more == -INFINITY ? 0.0F : more;
      keep[lower] = ptx::exp2_approximate((most[lower] - finite) * exponent_scale);
      float part = 0.0F;
      ESPALIER_UNROLL
      for (int n = 0; n < 2; ++n) {
        ESPALIER_UNROLL
        for (int e = 0; e < 2; ++e) {
          float& one = score[n][2 * lower + e];
          one = ptx::exp2_approximate((one - finite) * exponent_scale);
          part += one;
        }
      }
      if (!sees[lower]) continue;
      most[lower] = more;
      total[lower] = fmaf(total[lower], keep[lower], part);
    }
  }

  // Writes the warp's sums to shared memory, [pass_warps][pass_queries][dim + 2]: most, total, and dim sums.
  __device__ void leave(float* sums) {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32), warp = static_cast<std::int32_t>(threadIdx.x / 32);
    ESPALIER_UNROLL
    for (int lower = 0; lower < 2; ++lower) {
      total[lower] += __shfl_xor_sync(0xFFFFFFFFU, total[lower], 1);
      total[lower] += __shfl_xor_sync(0xFFFFFFFFU, total[lower], 2);
      const std::int32_t q = lane / 4 + 8 * lower;
      if (q >= n_rows * group) continue;
      float* const to = sums + (warp * pass_queries + q) * (dim + 2);
      if (lane % 4 == 0) to[0] = most[lower], to[1] = total[lower];
      ESPALIER_UNROLL
      for (int d = 0; d < dim / 8; ++d) {
        to[2 + 8 * d + lane % 4 * 2] = sum[d][2 * lower];
        to[3 + 8 * d + lane % 4 * 2] = sum[d][2 * lower + 1];
      }
    }
  }

  __device__ void merge(const float* sums, std::int32_t n_warps) const {
    for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n_rows * group * dim; i += pass_threads) {
      const std::int32_t q = i / dim, d = i % dim;
      if (!is_query(q)) continue;
      const float* const first = sums + q * (dim + 2);
      constexpr int step = pass_queries * (dim + 2);
      float top = -INFINITY;
      for (std::int32_t w = 0; w < n_warps; ++w)
        top = fmaxf(top, first[w * step]);
      float all = 0.0F, value = 0.0F;
      for (std::int32_t w = 0; w < n_warps; ++w) {
        const float by = ptx::exp2_approximate((first[w * step] - top) * exponent_scale);
        all += by * first[w * step + 1];
        value += by * first[w * step + 2 + d];
      }
      attended[(static_cast<std::int64_t>(row_of(q)) * n_heads + head_of(q)) * dim + d] = NumberT(value / all);
    }
  }

  // Computes the attention. Called by all threads of the block, some of which may still read `work` when others return.
  __device__ void run(unsigned char* work) {
    std::int32_t most_seen = 0, straight = INT32_MAX;
    bool is_one_text = true;
    for (std::int32_t i = 0; i < n_rows; ++i) {
      const pass_row& row = rows[first_row + i];
      if (row.sequence < 0) continue;
      most_seen = row.seen > most_seen ? row.seen : most_seen;
      straight = row.straight < straight ? row.straight : straight;
      is_one_text = is_one_text && row.sequence == rows[first_row].sequence;
    }
    const std::int32_t n_blocks = (most_seen + pass_keys - 1) / pass_keys;
    const std::int32_t n_shared = is_one_text ? straight / pass_keys : 0;
    const auto warp = static_cast<std::int32_t>(threadIdx.x / 32);
    const ptx::shared_address values =
        ptx::address_of(work) + static_cast<std::uint32_t>(warp * pass_keys * pass_value_stride<dim>);
    if (warp < n_blocks) load_queries();
    for (std::int32_t block = warp; block < n_blocks; block += pass_warps) {
      if (block < n_shared) {
        add_block(block, -1, values);
        continue;
      }
      for (std::int32_t i = 0; i < n_rows; ++i) {
        if (rows[first_row + i].seen > block * pass_keys) add_block(block, i, values);
      }
    }
    __syncthreads();
    auto* const sums = reinterpret_cast<float*>(work);
    leave(sums);
    __syncthreads();
    merge(sums, n_blocks < pass_warps ? n_blocks : pass_warps);
  }
};

}  // namespace espalier::cuda::detail
