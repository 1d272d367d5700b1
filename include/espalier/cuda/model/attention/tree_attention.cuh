// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/error.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/ptx.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/model/attention/attention_arguments.cuh"
#include "espalier/cuda/model/attention/attention_merge.cuh"
#include "espalier/cuda/model/attention/attention_plan.cuh"
#include "espalier/cuda/model/attention/attention_tile.cuh"
#include "espalier/cuda/model/attention/path_attention.cuh"
#include "espalier/cuda/model/attention/row_keys.cuh"
#include "espalier/cuda/model/attention/tile_attention.cuh"
#include "espalier/cuda/model/attention/warpgroup_attention.cuh"
#include "espalier/cuda/model/attention/warpgroup_tile.cuh"

namespace espalier::cuda::detail {

inline constexpr int plain_attention_warps = 4;
inline constexpr int plain_attention_max_dim = 256;
inline constexpr std::size_t plain_attention_shared_bytes =
    plain_attention_warps * (plain_attention_max_dim * sizeof(float) + row_keys::block * sizeof(std::int32_t));

//! Attention without tensor cores, for any head dimension up to 256 and any number type: a warp works on one row and
//! head. It always sums by position: block b of 64 keys belongs to split b % n_splits.
//!
//! Each lane scores one key; then each lane sums some of the dimensions. Keys that the row does not see are not read,
//! nor are keys before its window.
//!
//! Complexity  a row reads all its keys and values itself
template <class NumberT>
ESPALIER_KERNEL __launch_bounds__(32 * plain_attention_warps) void plain_attention(attention_arguments<NumberT> a) {
  ptx::allow_next();
  ptx::await_previous();
  constexpr int dimensions = plain_attention_max_dim / 32;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32), warp = static_cast<std::int32_t>(threadIdx.x / 32);
  const auto i = static_cast<std::int32_t>((blockIdx.x * blockDim.x + threadIdx.x) / 32);
  const std::int32_t row = i / a.n_heads, head = i % a.n_heads;
  if (row >= a.batch.n_rows || a.batch.sequence_of[row] < 0) return;
  const auto split = static_cast<std::int32_t>(blockIdx.y);

  float* const queries = reinterpret_cast<float*>(shared_memory());
  float* const query = queries + warp * plain_attention_max_dim;
  std::int32_t* const rows =
      reinterpret_cast<std::int32_t*>(queries + plain_attention_warps * plain_attention_max_dim) +
      warp * row_keys::block;
  const NumberT* const from = a.queries + static_cast<std::int64_t>(row) * a.query_stride + head * a.head_dim;
  for (std::int32_t d = lane; d < a.head_dim; d += 32)
    query[d] = static_cast<float>(from[d]);
  __syncwarp();

  const row_keys keys(a.batch, row, a.seen_words);
  const NumberT* const first_key = a.kv.data + static_cast<std::int64_t>(head / a.group) * a.head_dim;
  const std::int64_t to_value = static_cast<std::int64_t>(a.kv.page_size) * a.kv.row_size;

  const std::int32_t window = a.windows != nullptr ? a.windows[row] : a.window;
  const std::int32_t begin = window > 0 && keys.n > window ? keys.n - window : 0;  // the first key in the window
  const std::int32_t left_out = (begin / row_keys::block - split + a.n_splits - 1) / a.n_splits;
  float most = -INFINITY, total = 0.0F, sum[dimensions] = {};
  for (std::int32_t block = split + (left_out > 0 ? left_out * a.n_splits : 0); block < keys.n_blocks();
       block += a.n_splits) {
    __syncwarp();
    keys.list(a.kv, block, rows);
    for (std::int32_t first = 0; first < row_keys::block && rows[first] >= 0; first += 32) {
      // The number of these 32 keys that lie before the window, or a number below 1.
      const std::int32_t hidden = begin - (row_keys::block * block + first);
      const std::int32_t own = lane < hidden ? -1 : rows[first + lane];
      float score = -INFINITY;
      if (own >= 0) {
        const NumberT* const k = first_key + static_cast<std::int64_t>(own) * a.kv.row_size;
        score = 0.0F;
        for (std::int32_t d = 0; d < a.head_dim; ++d)
          score = fmaf(query[d], static_cast<float>(k[d]), score);
        if (a.cap > 0.0F) score = a.cap * tanhf(score * a.cap_scale);
      }
      float more = score;
      for (int step = 16; step > 0; step /= 2)
        more = fmaxf(more, __shfl_xor_sync(0xFFFFFFFFU, more, step));
      more = fmaxf(more, most);
      const float keep = most == -INFINITY ? 0.0F : exp2f((most - more) * a.exponent_scale);
      const float weight = own >= 0 ? exp2f((score - more) * a.exponent_scale) : 0.0F;
      most = more;
      float weights = weight;
      for (int step = 16; step > 0; step /= 2)
        weights += __shfl_xor_sync(0xFFFFFFFFU, weights, step);
      total = fmaf(total, keep, weights);
      for (int part = 0; part < dimensions; ++part)
        sum[part] *= keep;
      for (int j = 0; j < 32; ++j) {
        const std::int32_t at = rows[first + j];
        if (at < 0) break;
        if (j < hidden) continue;
        const float w = __shfl_sync(0xFFFFFFFFU, weight, j);
        const NumberT* const v = first_key + static_cast<std::int64_t>(at) * a.kv.row_size + to_value;
        ESPALIER_UNROLL
        for (int part = 0; part < dimensions; ++part)
          if (const std::int32_t d = lane + 32 * part; d < a.head_dim)
            sum[part] = fmaf(w, static_cast<float>(v[d]), sum[part]);
      }
    }
  }

  const float factor = mean_factor(a, i, most, total);
  const std::int64_t n = static_cast<std::int64_t>(a.batch.n_rows) * a.n_heads;
  if (a.n_splits > 1) {
    if (lane == 0) a.part_scores[split * n + i] = {most, total};
    if (total == 0.0F) return;
  }
  ESPALIER_UNROLL
  for (int part = 0; part < dimensions; ++part) {
    const std::int32_t d = lane + 32 * part;
    if (d >= a.head_dim) continue;
    if (a.n_splits > 1) {
      a.parts[(split * n + i) * a.head_dim + d] = sum[part];
    } else {
      // Rounds as merge_parts does if there is one part.
      a.out[static_cast<std::int64_t>(i) * a.head_dim + d] = static_cast<NumberT>((sum[part] + 0.0F) * factor);
    }
  }
}

}  // namespace espalier::cuda::detail

namespace espalier::cuda {

//! Attention of the rows of a forward batch over one layer of a cache: all slots of the prefix, then the slots of the
//! tree that the row's mask shows. The object owns the memory for the partial results of the splits of the context.
//!
//! The query heads that share keys and values share a tile of 64, 128 or 192 pairs of row and head, which goes through
//! the slots in blocks of 64. Blocks of the tree's columns that no row of a tile sees are neither read nor computed,
//! and warps skip blocks that their own rows do not see. In depth-first order, the ancestors of a row are near it, so
//! that most blocks are not seen. The prefix needs no mask. If rows and heads are few, the context is divided among
//! more thread blocks, whose results a second kernel merges in a fixed order: results have the same bits every time.
//! Weights and sums are floats; the tensor cores take weights that are rounded to the type of the values.
//!
//! With shape.batch_invariant the keys that a row sees are numbered by position: the prefix, then the row's ancestors
//! from the root on and itself. Keys 64 b to 64 b + 63 are block b, which belongs to split b % 8. A split adds up its
//! blocks in order, the tensor cores take 16 keys at a time in order, and splits are merged in order. Tiles work on the
//! blocks that all their rows see whole and at the same slots; the last blocks of a row, in which its path lies, are
//! summed for that row alone by the kernel that also merges. No bit depends on whether a block is summed in a tile or
//! for a row alone.
//!
//! Head dimensions 64 and 128 of half and bfloat16 numbers run on tensor cores; floats, and other dimensions up to 256,
//! on a plain kernel that is meant for small models and comparison. Capped scores take the plain kernel whatever the
//! numbers are. So do windows: those of each row always, one for all rows without batch_invariant if it is shorter than
//! the context and the batch together, with batch_invariant always. All kernels take sinks, which are added to a row's
//! weights when its mean is made.
//!
//! Tensor cores are used by mma.sync, or by wgmma on compute capability 9.0 in a program that is compiled for sm_90a
//! (CMAKE_CUDA_ARCHITECTURES 90a, or nvcc -gencode arch=compute_90a,code=sm_90a); code for plain sm_90 has no wgmma.
//! has_warpgroups() tells whether wgmma can be used. The two may add up in different orders. If wgmma can be used, all
//! sums on tensor cores are made by it with batch_invariant; without batch_invariant the shape of the batch decides, by
//! the costs of the tuning. A tile for wgmma has 192 rows: three warpgroups of 64, of which one is expected to compute
//! its softmax while others multiply. A fourth warpgroup copies keys and values through a ring of eight buffers, 16
//! bytes at a time (cp.async): a bulk copy of a row would leave it unswizzled, and copies by a tensor map could neither
//! follow pages of any size nor leave out slots that nobody sees.
//!
//! Complexity  4 n_rows n_heads head_dim context floating point operations. Keys and values, 4 context n_kv_heads
//!             head_dim bytes for 16-bit numbers, are read from memory once, and ceil(n_rows (n_heads / n_kv_heads) /
//!             128) times from the second-level cache; splits move 8 n_splits n_rows n_heads head_dim bytes more. For
//!             32 heads of 128, 8 key-value heads, 16,384 slots of prefix: 1,024 nodes 292 GFLOP, 71 MB from memory,
//!             2.4 GB from the second-level cache; 64 nodes 17.5 GFLOP, 67 MB, 0.2 GB. Both are bound by arithmetic:
//!             they do 260 operations or more for each byte that is read from memory. On an H200 wgmma takes 0.7 of
//!             mma.sync's time for these two shapes (docs/algorithms/device.md). With wgmma the second-level cache is
//!             read once for 192 rows, and 192 rows of 128 numbers take, for 64 slots, these clocks of a multiprocessor
//!             by count (measured on an H200: some 2,200 with 1,024 nodes, 3,100 with 64): wgmma 1,536; shared memory
//!             1,408 (scores read 96 KiB, values 48, copies write 32); the second-level cache 1,365; instructions of
//!             other kinds some 1,300; exponentials 768. With batch_invariant the partial results of 8 splits (fewer if
//!             the context has fewer than 8 blocks) are always moved, and a row reads its last blocks itself, mostly
//!             one or two: 256 n_kv_heads head_dim bytes each for 16-bit numbers
//! Errors      option_error for a shape that no kernel takes; cuda_error
//! Law         slots that no row sees are not read, so their contents do not matter, NaN included. A NaN among the
//!             values shows in the rows that see it, and may show in other rows of their tile. Rows are computed alike
//!             in tiles of 64 and of 128 rows. With batch_invariant a row's bits depend on its query and on the keys
//!             and values it sees, in the order of their positions, and on nothing else: neither on where these lie
//!             (prefix, tree in any order of its nodes, pages), nor on other rows, their number, or max_context
//! Source      Xiong et al., DySpec, appendix C (blocks of the mask left out); Dao, FlashAttention-2 (tiles); Dao et
//!             al., Flash-Decoding (splits); Shah et al., FlashAttention-3 (warpgroups that copy and compute)
template <class NumberT>
class tree_attention {
 public:
  explicit tree_attention(const attention_shape& shape) : tree_attention(shape, attention_tuning_of_device()) {}

  tree_attention(const attention_shape& shape, const attention_tuning& tuning) : shape_(shape), tuning_(tuning) {
    require_option("n_kv_heads", shape.n_kv_heads, 1, (1 << 16) - 1);  // a dimension of grids
    require_option("n_heads", shape.n_heads, shape.n_kv_heads, 1 << 16);
    if (shape.n_heads % shape.n_kv_heads != 0)
      raise<option_error>("option n_heads is ", shape.n_heads, ", but must be a multiple of n_kv_heads, ",
                          shape.n_kv_heads, ".");
    require_option("head_dim", shape.head_dim, 1, detail::plain_attention_max_dim);
    require_option("max_rows", shape.max_rows, 1, detail::max_mask_columns);
    require_option("max_context", shape.max_context, 1, 1 << 26);
    require_option("max_splits", tuning.max_splits, 1, 32);
    tuning_.warpgroups = tuning_.warpgroups && warpgroups_are_compiled();
    if (shape_.query_stride == 0) shape_.query_stride = shape.n_heads * shape.head_dim;
    n_parts_ = detail::rows_of_parts(shape_, tuning_);
    const std::size_t heads = static_cast<std::size_t>(shape.n_heads);
    parts_ = device_array<float>(n_parts_ * heads * static_cast<std::size_t>(shape.head_dim));
    part_scores_ = device_array<detail::part_score>(n_parts_ * heads);
    if (shape.batch_invariant)
      whole_blocks_ = device_array<std::int32_t>(static_cast<std::size_t>(shape.max_rows) * heads);
  }

  const attention_shape& shape() const { return shape_; }

  //! True if sums can be made by wgmma: tuning.warpgroups is set, and the program has code for this type and head
  //! dimension that runs on the present device. If so, on tensor cores all sums by position are made by wgmma, and
  //! other sums if the costs say so.
  bool has_warpgroups() const { return tuning_.warpgroups; }

  //! Computes attention for the rows of a batch, whose keys and values are in the cache already. No synchronisation.
  //! The launches depend on the fields of the views alone, so a graph can capture them. Padding rows of `out` are left
  //! alone.
  //!
  //! Shapes      queries [n_rows][n_heads * head_dim], with query_stride numbers from one row to the next; out
  //!             [n_rows][n_heads * head_dim]: aligned to 16 bytes
  //! Pre         batch.n_rows <= max_rows; batch.max_context <= max_context; masks show no column from
  //!             batch.max_context + batch.n_rows or from 32,768 on; scores.scale > 0
  void run(const NumberT* queries, const kv_view<NumberT>& kv, std::int32_t layer, const forward_batch_view& batch,
           const attention_scores& scores, NumberT* out, cudaStream_t stream) const {
    if (batch.n_rows == 0) return;
    detail::attention_arguments<NumberT> a{};
    a.queries = queries;
    a.kv = kv;
    a.kv.data += layer * kv.layer_stride;
    a.batch = batch;
    a.out = out;
    a.parts = parts_.data();
    a.part_scores = part_scores_.data();
    a.by_position = shape_.batch_invariant;
    a.exponent_scale = scores.scale * 1.44269504F;
    if (scores.cap > 0.0F) {
      a.cap = scores.cap;
      a.cap_scale = scores.scale / scores.cap;
      a.exponent_scale = 1.44269504F;
    }
    a.window = scores.window;
    a.windows = scores.windows;
    a.sinks = scores.sinks;
    a.query_stride = shape_.query_stride;
    a.n_heads = shape_.n_heads;
    a.group = shape_.n_heads / shape_.n_kv_heads;
    a.head_dim = shape_.head_dim;
    a.seen_words = 2 * ((std::min(batch.max_context + batch.n_rows, detail::max_mask_columns) + 63) / 64);
    const detail::attention_plan plan =
        detail::plan_attention(shape_, tuning_, batch.n_rows, batch.n_sequences, batch.max_context);
    a.n_splits = static_cast<std::int32_t>(std::clamp<std::size_t>(n_parts_ / static_cast<std::size_t>(batch.n_rows), 1,
                                                                   static_cast<std::size_t>(plan.n_splits)));
    const bool by_tiles = takes_tiles(a) && launch_tiles(a, plan, stream);
    if (!by_tiles) launch_plain(a, stream);
    if (a.n_splits > 1 && !(by_tiles && a.by_position)) {
      const std::int32_t warps = detail::attention_merge_threads / 32;
      const launch_shape merge{.grid = blocks_for(batch.n_rows * shape_.n_heads, warps),
                               .threads = detail::attention_merge_threads,
                               .overlaps = true};
      launch("merge_attention", detail::merge_attention<NumberT>, merge, stream, a);
    }
  }

 private:
  static unsigned blocks_for(std::int32_t items, std::int32_t per_block) {
    return static_cast<unsigned>((items + per_block - 1) / per_block);
  }

  // True if the kernels by wgmma are compiled for the present device. Empty kernels have launch bounds of 32 threads.
  template <int dim>
  static bool is_compiled() {
    cudaFuncAttributes attributes = {};
    require(cudaFuncGetAttributes(&attributes, detail::warpgroup_attention<NumberT, dim>), "cudaFuncGetAttributes");
    return attributes.maxThreadsPerBlock >= detail::warpgroup_tile<NumberT, dim>::threads;
  }
  bool warpgroups_are_compiled() const {
    if constexpr (sizeof(NumberT) == 2) {
      if (shape_.head_dim == 64) return is_compiled<64>();
      if (shape_.head_dim == 128) return is_compiled<128>();
    }
    return false;
  }

  // True if the kernels for tiles can compute this attention: they apply neither caps nor windows. With batch_invariant
  // the answer must not depend on the context's length.
  bool takes_tiles(const detail::attention_arguments<NumberT>& a) const {
    const bool sees_all = a.window == 0 || (!a.by_position && a.window >= a.batch.max_context + a.batch.n_rows);
    return sees_all && a.windows == nullptr && a.cap == 0.0F;
  }

  bool launch_tiles(detail::attention_arguments<NumberT>& a, const detail::attention_plan& plan,
                    cudaStream_t stream) const {
    if constexpr (sizeof(NumberT) == 2) {
      if (shape_.head_dim == 64) return launch_tiles_of<64>(a, plan, stream);
      if (shape_.head_dim == 128) return launch_tiles_of<128>(a, plan, stream);
    }
    return false;
  }

  template <int dim>
  bool launch_tiles_of(detail::attention_arguments<NumberT>& a, const detail::attention_plan& plan,
                       cudaStream_t stream) const {
    a.whole_blocks = plan.n_tiles > 0 ? whole_blocks_.data() : nullptr;
    if (plan.n_tiles > 0 && plan.row_groups == 1) launch_tile_kernel<dim, 1>(a, plan, stream);
    if (plan.n_tiles > 0 && plan.row_groups == 2) launch_tile_kernel<dim, 2>(a, plan, stream);
    if (plan.n_tiles > 0 && plan.row_groups == 3) launch_warpgroup_kernel<dim>(a, plan, stream);
    if (a.by_position && tuning_.warpgroups)
      launch_path_kernel<dim, detail::path_warpgroup<NumberT, dim>>(a, stream);
    else if (a.by_position)
      launch_path_kernel<dim, detail::path_warp<NumberT, dim>>(a, stream);
    return true;
  }

  template <int dim, int row_groups>
  void launch_tile_kernel(detail::attention_arguments<NumberT>& a, const detail::attention_plan& plan,
                          cudaStream_t stream) const {
    using tile = detail::attention_tile<NumberT, dim, row_groups>;
    // Two stages if resident_blocks blocks then still fit on a multiprocessor, which reserves 1 KiB for each of them.
    const std::int32_t room = tuning_.shared_bytes / tuning_.resident_blocks - 1024;
    a.n_stages = static_cast<std::int64_t>(tile::shared_bytes(2, a.seen_words)) <= room ? 2 : 1;
    const launch_shape shape{.grid = dim3(static_cast<unsigned>(plan.n_tiles), static_cast<unsigned>(a.n_splits),
                                          static_cast<unsigned>(shape_.n_kv_heads)),
                             .threads = tile::threads,
                             .shared_bytes = tile::shared_bytes(a.n_stages, a.seen_words),
                             .overlaps = true};
    launch("tile_attention", detail::tile_attention<NumberT, dim, row_groups>, shape, stream, a);
  }

  template <int dim>
  void launch_warpgroup_kernel(const detail::attention_arguments<NumberT>& a, const detail::attention_plan& plan,
                               cudaStream_t stream) const {
    using tile = detail::warpgroup_tile<NumberT, dim>;
    const launch_shape shape{.grid = dim3(static_cast<unsigned>(plan.n_tiles), static_cast<unsigned>(a.n_splits),
                                          static_cast<unsigned>(shape_.n_kv_heads)),
                             .threads = tile::threads,
                             .shared_bytes = tile::shared_bytes(a.seen_words),
                             .overlaps = true};
    launch("warpgroup_attention", detail::warpgroup_attention<NumberT, dim>, shape, stream, a);
  }

  template <int dim, class TeamT>
  void launch_path_kernel(const detail::attention_arguments<NumberT>& a, cudaStream_t stream) const {
    using sizes = detail::path_tile<NumberT, dim, TeamT>;
    launch_shape shape{.grid = dim3(static_cast<unsigned>(a.batch.n_rows), static_cast<unsigned>(shape_.n_kv_heads),
                                    blocks_for(a.group, TeamT::queries))};
    // With few rows a thread block has a multiprocessor to itself, and reads a row's whole context.
    const bool few = a.whole_blocks == nullptr &&
                     std::int64_t{a.batch.n_rows} * shape_.n_kv_heads <= std::int64_t{tuning_.multiprocessors};
    std::int32_t teams = few ? TeamT::max_teams : TeamT::max_teams / 2;
    while (teams > 1 && static_cast<std::int64_t>(sizes::shared_bytes(teams)) > tuning_.shared_bytes - 1024)
      teams /= 2;
    shape.threads = static_cast<unsigned>(TeamT::threads * teams);
    shape.shared_bytes = sizes::shared_bytes(teams);
    shape.overlaps = true;
    launch("path_attention", detail::path_attention<NumberT, dim, TeamT>, shape, stream, a);
  }

  void launch_plain(const detail::attention_arguments<NumberT>& a, cudaStream_t stream) const {
    const launch_shape shape{.grid = dim3(blocks_for(a.batch.n_rows * shape_.n_heads, detail::plain_attention_warps),
                                          static_cast<unsigned>(a.n_splits)),
                             .threads = 32 * detail::plain_attention_warps,
                             .shared_bytes = detail::plain_attention_shared_bytes,
                             .overlaps = true};
    launch("plain_attention", detail::plain_attention<NumberT>, shape, stream, a);
  }

  attention_shape shape_;
  attention_tuning tuning_;
  std::size_t n_parts_ = 0;  // rows of partial results
  device_array<float> parts_;
  device_array<detail::part_score> part_scores_;
  device_array<std::int32_t> whole_blocks_;  // [max_rows][n_heads]
};

}  // namespace espalier::cuda
