// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/parallel/parallel_backend.cu
#pragma once

#include <cuda_runtime.h>
#include <cub/block/block_reduce.cuh>

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/model/parallel/rank_part.hpp"

namespace espalier::cuda::detail {

// Rows whose columns are divided over ranks, in the order in which they are sent: a block for each rank, one after
// another, all of one size, each beginning on 256 bytes. A block is [rows][columns of the rank].
template <class NumberT>
struct rank_blocks {
  NumberT* data = nullptr;
  espalier::detail::rank_division columns;
  std::int64_t stride = 0;  // numbers from one block to the next

  rank_blocks() = default;
  rank_blocks(NumberT* blocks, const espalier::detail::rank_division& division, std::int32_t rows)
      : data(blocks), columns(division) {
    std::int64_t widest = 0;
    for (std::int32_t r = 0; r < division.ranks; ++r)
      widest = widest > division.size(r) ? widest : division.size(r);
    constexpr std::int64_t granule = 256 / sizeof(NumberT);
    stride = (rows * widest + granule - 1) / granule * granule;
  }

  ESPALIER_HOST_DEVICE NumberT* of(std::int32_t rank) const { return data + rank * stride; }
  std::size_t numbers() const { return static_cast<std::size_t>(stride * columns.ranks); }
  // Bytes of one block.
  std::size_t bytes() const { return static_cast<std::size_t>(stride) * sizeof(NumberT); }
};

inline constexpr int block_copy_threads = 256;

// Calls use(column of the rows, index in the rank's block) for the columns of row blockIdx.x that `rank` has.
template <class UseT>
__device__ void each_column(const espalier::detail::rank_division& columns, std::int32_t rank, const UseT& use) {
  const std::int32_t begin = columns.begin(rank), width = columns.size(rank);
  const std::int64_t at = std::int64_t{blockIdx.x} * width;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < width; i += block_copy_threads)
    use(begin + i, at + i);
}

// The kernel of unpack(): one block of threads for each row and rank.
template <class NumberT>
ESPALIER_KERNEL void unpack_blocks(rank_blocks<NumberT> blocks, NumberT* rows) {
  const auto rank = static_cast<std::int32_t>(blockIdx.y);
  const NumberT* from = blocks.of(rank);
  NumberT* to = rows + std::int64_t{blockIdx.x} * blocks.columns.n;
  each_column(blocks.columns, rank, [&](std::int32_t column, std::int64_t at) { to[column] = from[at]; });
}

// The kernel of pack(): one block of threads for each row and each rank from `first` on.
template <class NumberT>
ESPALIER_KERNEL void pack_blocks(const NumberT* rows, rank_blocks<NumberT> blocks, std::int32_t first) {
  const std::int32_t rank = first + static_cast<std::int32_t>(blockIdx.y);
  const NumberT* from = rows + std::int64_t{blockIdx.x} * blocks.columns.n;
  NumberT* to = blocks.of(rank);
  each_column(blocks.columns, rank, [&](std::int32_t column, std::int64_t at) { to[at] = from[column]; });
}

// The kernel of add(), one block of threads a row: to = the columns of `rows` that belong to rank `own` (or 0 if `rows`
// is null) + the partial sums of rank 0, 1, ... Block r of `parts` has rank r's partial sums for the same columns.
template <class UnusedT = void>
ESPALIER_KERNEL void add_blocks(const float* rows, rank_blocks<float> parts, std::int32_t own, float* to) {
  const float* from = rows + (rows != nullptr ? std::int64_t{blockIdx.x} * parts.columns.n : 0);
  each_column(parts.columns, own, [&](std::int32_t column, std::int64_t at) {
    float sum = rows != nullptr ? from[column] : 0.0F;
    for (std::int32_t r = 0; r < parts.columns.ranks; ++r)
      sum += parts.of(r)[at];
    to[at] = sum;
  });
}

// Copies the blocks of all ranks to rows [n][columns.n].
template <class NumberT>
void unpack(const rank_blocks<NumberT>& blocks, int n, NumberT* rows, cudaStream_t stream) {
  if (n == 0) return;
  launch("unpack_blocks", unpack_blocks<NumberT>,
         {.grid = dim3(static_cast<unsigned>(n), static_cast<unsigned>(blocks.columns.ranks)),
          .threads = block_copy_threads},
         stream, blocks, rows);
}
// Copies rows [n][columns.n] to the blocks of all ranks.
template <class NumberT>
void pack(const NumberT* rows, int n, const rank_blocks<NumberT>& blocks, cudaStream_t stream) {
  launch("pack_blocks", pack_blocks<NumberT>,
         {.grid = dim3(static_cast<unsigned>(n), static_cast<unsigned>(blocks.columns.ranks)),
          .threads = block_copy_threads},
         stream, rows, blocks, 0);
}
// Copies from rows [n][columns.n] the columns of rank `own` to its block.
template <class NumberT>
void pack_own(const NumberT* rows, int n, const rank_blocks<NumberT>& blocks, int own, cudaStream_t stream) {
  launch("pack_blocks", pack_blocks<NumberT>, {.grid = static_cast<unsigned>(n), .threads = block_copy_threads}, stream,
         rows, blocks, own);
}
// Writes to `to` the columns of rank `own`: its columns of `rows`, if that is not null, plus the partial sums of all
// ranks.
inline void add(const float* rows, int n, const rank_blocks<float>& parts, int own, float* to, cudaStream_t stream) {
  launch("add_blocks", add_blocks<>, {.grid = static_cast<unsigned>(n), .threads = block_copy_threads}, stream, rows,
         parts, own, to);
}

// The arguments of choose(), which takes the embedding of each token from the rank whose part of the vocabulary has it.
// A token outside the vocabulary gives NaN, and so does a row for which a rank has another token or position than rank
// 0; the number of that rank is written to `parted`.
//
// Shapes: tokens [rows]; from: a block of each rank, `stride` words apart, of floats [rows][width], tokens [rows] and
// positions [rows]; to [rows][width]
struct embedding_choice {
  const token_id* tokens = nullptr;
  espalier::detail::rank_division vocabulary;
  const float* from = nullptr;
  std::int64_t stride = 0;
  std::int32_t rows = 0;
  std::int32_t width = 0;
  float* to = nullptr;
  std::int32_t* parted = nullptr;  // gets the number of a rank that differs from rank 0

  static std::int64_t stride_of(std::int64_t rows, std::int32_t width) { return (rows * (width + 2) + 63) / 64 * 64; }
  // Returns the tokens [rows] of a rank; its positions [rows] follow them.
  ESPALIER_HOST_DEVICE const std::int32_t* batch_of(std::int32_t rank) const {
    return reinterpret_cast<const std::int32_t*>(from + rank * stride + std::int64_t{rows} * width);
  }
};

inline constexpr int choose_threads = 256;

// The kernel of choose(): one block for each row.
template <class UnusedT = void>
ESPALIER_KERNEL void choose_embeddings(embedding_choice job) {
  const token_id token = job.tokens[blockIdx.x];
  bool known = token >= 0 && token < job.vocabulary.n;
  std::int32_t owner = 0;
  while (known && token >= job.vocabulary.begin(owner + 1))
    ++owner;
  const std::int32_t* first = job.batch_of(0) + blockIdx.x;
  for (std::int32_t r = 1; r < job.vocabulary.ranks; ++r) {
    const std::int32_t* other = job.batch_of(r) + blockIdx.x;
    if (other[0] == first[0] && other[job.rows] == first[job.rows]) continue;
    known = false;
    if (threadIdx.x == 0) *job.parted = r;
  }
  const std::int64_t row = std::int64_t{blockIdx.x} * job.width;
  const float* from = job.from + owner * job.stride + row;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < job.width; i += choose_threads)
    job.to[row + i] = known ? from[i] : NAN;
}

inline void choose(const embedding_choice& job, cudaStream_t stream) {
  launch("choose_embeddings", choose_embeddings<>, {.grid = static_cast<unsigned>(job.rows), .threads = choose_threads},
         stream, job);
}

// The greatest logit in a rank's part of a row, and the first token that has it; the first NaN if there is one.
struct part_maximum {
  float logit;
  token_id token;  // -1: the part is empty
};

struct greater_part {
  __device__ part_maximum operator()(const part_maximum& a, const part_maximum& b) const {
    if (a.token < 0 || b.token < 0) return a.token < 0 ? b : a;
    const bool earlier = a.token < b.token;
    if (isnan(a.logit) || isnan(b.logit)) return isnan(a.logit) && (earlier || !isnan(b.logit)) ? a : b;
    return a.logit > b.logit || (a.logit == b.logit && earlier) ? a : b;
  }
};

inline constexpr int maximum_threads = 256;

struct maximum_memory {
  using reduce_type = cub::BlockReduce<part_maximum, maximum_threads>;

  typename reduce_type::TempStorage storage;
};

// The kernel of find_maxima(): one block for each row of the rank's logits [n][width], whose first token is `first`.
template <class LogitT>
ESPALIER_KERNEL void find_part_maxima(const LogitT* logits, std::int32_t width, token_id first, part_maximum* to) {
  auto& memory = *reinterpret_cast<maximum_memory*>(shared_memory());
  const LogitT* row = logits + std::int64_t{blockIdx.x} * width;
  part_maximum own{0.0F, -1};
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < width; i += maximum_threads)
    own = greater_part()(own, {static_cast<float>(row[i]), first + i});
  const part_maximum found = maximum_memory::reduce_type(memory.storage).Reduce(own, greater_part());
  if (threadIdx.x == 0) to[blockIdx.x] = found;
}

// The kernel of spread(): one block for each row. Writes the greatest logit of each rank's part under its token, and
// minus infinity everywhere else.
//
// Shapes: maxima: n for each rank, `stride` from rank to rank; logits [n][vocab]
template <class LogitT>
ESPALIER_KERNEL void spread_maxima(const part_maximum* maxima, std::int64_t stride, std::int32_t ranks, LogitT* logits,
                                   std::int32_t vocab) {
  LogitT* row = logits + std::int64_t{blockIdx.x} * vocab;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < vocab; i += maximum_threads)
    row[i] = LogitT(-INFINITY);
  __syncthreads();
  for (auto r = static_cast<std::int32_t>(threadIdx.x); r < ranks; r += maximum_threads) {
    const part_maximum found = maxima[r * stride + blockIdx.x];
    if (found.token >= 0) row[found.token] = LogitT(found.logit);
  }
}

template <class LogitT>
void find_maxima(const LogitT* logits, int width, token_id first, int n, part_maximum* to, cudaStream_t stream) {
  launch("find_part_maxima", find_part_maxima<LogitT>,
         {.grid = static_cast<unsigned>(n), .threads = maximum_threads, .shared_bytes = sizeof(maximum_memory)}, stream,
         logits, width, first, to);
}
template <class LogitT>
void spread(const part_maximum* maxima, std::int64_t stride, int ranks, int n, LogitT* logits, int vocab,
            cudaStream_t stream) {
  launch("spread_maxima", spread_maxima<LogitT>, {.grid = static_cast<unsigned>(n), .threads = maximum_threads}, stream,
         maxima, stride, ranks, logits, vocab);
}

}  // namespace espalier::cuda::detail
