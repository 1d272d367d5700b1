// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/core/tree_order.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/sum_before.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/tree_order.cuh"

namespace espalier::cuda {

namespace detail {

//! The shape of a launch of compile_trees: which one is taken depends on the rows that a tree may have, not on the
//! architecture. Each block finds the order of the whole tree, and writes the rows and masks of its tile.
struct tree_compile_tuning {
  int threads;  //!< threads of a block
  int items;    //!< nodes of a thread
  int tile;     //!< rows that one block writes
};
inline constexpr tree_compile_tuning tree_compile_tunings[] = {{96, 1, 96}, {288, 1, 96}, {544, 1, 128}, {544, 2, 128}};

//! The arrays of a batch that is written on the device. Shapes as in forward_batch_view
struct batch_arrays {
  token_id* tokens = nullptr;
  std::int32_t* positions = nullptr;
  std::int32_t* slots = nullptr;
  std::int32_t* sequence_of = nullptr;
  batch_sequence* sequences = nullptr;
  std::uint32_t* mask = nullptr;
};

//! The arrays in which compile_trees writes the rows of all lanes. Shapes: nodes, rows [lanes][n_rows]
struct compiled_rows : batch_arrays {
  std::int32_t n_rows = 0;  //!< the most rows that a lane has
  std::int32_t packed = 0;  //!< number of rows of the batch, if the trees are packed one after the other; 0: each
                            //!< lane has n_rows rows, padding included
  std::int32_t mask_words = 0;
  node_order order = node_order::insertion;
  node_id* nodes = nullptr;
  std::int32_t* rows = nullptr;
};

template <int Threads, int Items, int Tile>
struct tree_compile_memory {
  static constexpr int places = Threads * Items;
  static constexpr int tile_words = (places + 31) / 32 | 1;  // odd: neighbouring rows begin in different banks

  typename block_tree_order<Threads, Items>::memory order;
  token_id token[places];      // by node
  std::int32_t depth[places];  // by node
  node_id node_of[places];     // by row: its node
  std::int32_t above[places];  // by row: the row of the parent
  union {
    typename block_tree_order<Threads, Items>::sort_memory sorting;
    std::uint32_t tile[Tile * tile_words];
  };
};

// Finds the row of each node (m.order.rank) and the node of each row (m.node_of), and copies the nodes' tokens and
// depths, which are read later. Ends with a barrier.
template <int Threads, int Items, int Tile>
__device__ void order_nodes(tree_compile_memory<Threads, Items, Tile>& m, const tree_writer& tree, node_order order,
                            int n) {
  block_tree_order<Threads, Items> block(m.order, m.sorting, n);
  block.each([&](int u) {
    m.order.parent[u] = tree.parent[u];
    m.token[u] = tree.token[u];
    m.depth[u] = tree.depth[u];
    m.order.below[u] = 1;
    m.order.rank[u] = u;
  });
  const int depth_bits = order == node_order::insertion ? 0 : block.preorder(order == node_order::heavy_path, 1);
  if (order == node_order::breadth_first) {
    // Among nodes of one depth, breadth-first order is preorder.
    if constexpr (block_tree_order<Threads, Items>::is_counted) {
      block.each([&](int u) { m.above[u] = m.depth[u] * n + m.order.rank[u]; });
      __syncthreads();
      block.each([&](int u) {
        const std::int32_t own = m.above[u];
        std::int32_t row = 0;
        for (int v = 0; v < n; ++v)
          row += m.above[v] < own ? 1 : 0;
        m.order.rank[u] = row;
      });
      __syncthreads();
    } else {
      block.each([&](int u) { m.node_of[m.order.rank[u]] = u; });
      __syncthreads();
      std::int32_t node[Items];
      block.sort_stably(
          m.node_of, depth_bits, [&](node_id u) { return m.depth[u]; }, node);
      for (int k = 0; k < Items; ++k) {
        if (block.first_place() + k < n) m.order.rank[node[k]] = block.first_place() + k;
      }
      __syncthreads();
    }
  }
  block.each([&](int u) { m.node_of[m.order.rank[u]] = u; });
  __syncthreads();
}

//! The first row of a lane in the pass, and the number of its rows.
struct lane_rows {
  std::int32_t first;
  std::int32_t n;
};

//! Returns the rows of a lane. If rows are packed, the block adds up the rows of the lanes before. Called by the whole
//! block.
inline __device__ lane_rows rows_of_lane(const text_batch& texts, const compiled_rows& out, const text_in_batch& own,
                                         warp_sums& sums) {
  const auto rows_of = [&](const text_in_batch& of) {
    const std::int32_t n = of.place < 0 ? 0 : of.tree.size->n_nodes;
    return n < out.n_rows ? n : out.n_rows;
  };
  const std::int32_t n = rows_of(own);
  if (out.packed == 0) return {own.lane * out.n_rows, n};
  std::int32_t before = 0;
  for (auto lane = static_cast<std::int32_t>(threadIdx.x); lane < own.lane;
       lane += static_cast<std::int32_t>(blockDim.x))
    before += rows_of(texts.at(lane));
  const std::int32_t first = sum_before(before, sums).all;
  const std::int32_t left = out.packed > first ? out.packed - first : 0;
  return {first, n < left ? n : left};
}

//! Compiles the trees. Block (x, y) writes the tile of lane y that begins at row x * tile.
template <int Threads, int Items, int Tile>
ESPALIER_KERNEL void compile_trees(text_batch texts, compiled_rows out) {
  auto& m = *reinterpret_cast<tree_compile_memory<Threads, Items, Tile>*>(shared_memory());
  const text_in_batch from = texts.here();
  const std::int32_t s = from.lane;
  const lane_rows own = rows_of_lane(texts, out, from, m.order.sums);
  const std::int32_t n = own.n;
  const std::int32_t prefix = from.place < 0 ? 0 : from.text.state->size - 1;
  order_nodes(m, from.tree, out.order, n);

  const block_tree_order<Threads, Items> block(m.order, m.sorting, n);
  block.each([&](int u) { m.above[m.order.rank[u]] = u == root_node ? -1 : m.order.rank[m.order.parent[u]]; });
  const int thread = static_cast<int>(threadIdx.x);
  const std::int32_t first = static_cast<std::int32_t>(blockIdx.x) * Tile;
  const std::int32_t left = out.n_rows - first, count = left < Tile ? left : Tile;
  const std::int32_t there = out.packed == 0 ? count : n - first < count ? n - first : count;  // the tile's batch rows
  const std::int32_t words = out.mask_words, stride = words | 1;
  for (int i = thread; i < count * stride; i += Threads)
    m.tile[i] = 0;
  __syncthreads();

  // Walks up from each row. Ancestors have lower and lower rows, so a word is complete when the next one begins.
  for (int i = thread; i < count && first + i < n; i += Threads) {
    std::uint32_t* const row = m.tile + i * stride;
    std::int32_t word = (first + i) / 32;
    std::uint32_t bits = 0;
    for (std::int32_t r = first + i; r >= 0; r = m.above[r]) {
      if (r / 32 != word) {
        row[word] = bits;
        word = r / 32;
        bits = 0;
      }
      bits |= 1U << (r % 32);
    }
    row[word] = bits;
  }

  const std::int64_t listed = static_cast<std::int64_t>(s) * out.n_rows;
  for (int i = thread; i < count; i += Threads) {
    const std::int32_t row = first + i;
    out.nodes[listed + row] = row < n ? m.node_of[row] : no_node;
    out.rows[listed + row] = row < n ? m.order.rank[row] : -1;
  }
  const std::int64_t begin = own.first;
  for (int i = thread; i < there; i += Threads) {
    const std::int32_t row = first + i;
    const std::int64_t to = begin + row;
    const bool is_there = row < n;
    const node_id u = is_there ? m.node_of[row] : no_node;
    out.tokens[to] = is_there ? m.token[u] : 0;
    out.positions[to] = is_there ? prefix + m.depth[u] : 0;
    out.slots[to] = is_there ? prefix + row : -1;
    out.sequence_of[to] = is_there ? s : -1;
  }
  if (first == 0 && thread == 0) {
    const auto at = static_cast<std::int32_t>(begin);
    const std::int32_t sequence = from.place < 0 ? 0 : texts.first_sequence + from.place;
    out.sequences[s] = {sequence, at, at + n, prefix, at * words, words};
  }
  __syncthreads();
  for (int i = thread; i < there * words; i += Threads)
    out.mask[(begin + first) * words + i] = m.tile[i / words * stride + i % words];
  // The last lane also writes the padding after all lanes.
  if (s + 1 < texts.n) return;
  const auto step = static_cast<std::int32_t>(gridDim.x) * Threads;
  for (auto i = own.first + n + static_cast<std::int32_t>(blockIdx.x) * Threads + thread; i < out.packed; i += step) {
    out.tokens[i] = out.positions[i] = 0;
    out.slots[i] = out.sequence_of[i] = -1;
  }
}

}  // namespace detail

//! Makes the forward batch of a round from its trees, in one launch: order, tokens, positions, cache slots and masks.
//! The shapes are fixed; the contents are known to the device alone. Owns the batch.
//!
//! Between rounds the cache holds size - 1 rows of a text of `size` tokens. The row with index i in its lane therefore
//! has slot size - 1 + i, and position size - 1 plus the depth of its node. A tree has at most n_rows nodes; further
//! nodes are left out. Rows without a node are padding: they belong to no sequence. Trees may also be packed, one after
//! the other with all padding at the end, so that a pass needs fewer rows than n_rows for each lane. The masks of
//! padding are empty, or not written if trees are packed.
//!
//! Shapes      each lane has n_rows rows of the batch, or as many as its tree has nodes if rows are packed, with
//!             mask_words(n_rows) words each. nodes(), rows(): [lanes][n_rows], -1 beyond the tree
//! Complexity  a tree of n nodes and depth d has a block for each 96 or 128 rows. A block does O(log n) passes of a
//!             radix sort, or n comparisons for each node if n_rows <= 96; O(log d) steps of pointer doubling; and at
//!             most d steps for a row's mask. It reads 12 n bytes; the blocks of a lane together write n_rows * (24 + 4
//!             * mask_words(n_rows)) bytes. No synchronisation, no allocation after construction
//! Law         rows, tokens, positions and masks are those of tree_order and forward_batch
//! Errors      option_error for a capacity outside 0 to 1024 nodes, a number of sequences outside 1 to 65535, or more
//!             than 2147483647 words of masks in all; input_error if compile() is asked for more rows or lanes than
//!             there is room for, or for more packed rows than the lanes have; cuda_error
//! Source      Xiong et al., DySpec, appendix C (orders)
class tree_compiler {
 public:
  //! Makes a compiler with room for n_sequences trees of `capacity` nodes each, roots not counted. The batch has room
  //! for `spare_rows` further rows, and as many further sequences, which the caller writes.
  tree_compiler(std::int32_t capacity, node_order order, std::int32_t n_sequences = 1, std::int32_t spare_rows = 0)
      : capacity_(capacity), n_sequences_(n_sequences), order_(order) {
    require_option("nodes to compile", capacity, 0, 1024);
    require_option("sequences to compile", n_sequences, 1, 65535);
    const std::size_t rows = static_cast<std::size_t>(capacity + 1) * static_cast<std::size_t>(n_sequences);
    require_option("words of all masks", static_cast<double>(rows) * espalier::mask_words(capacity + 1), 1.0,
                   2147483647.0);
    const auto spare = static_cast<std::size_t>(spare_rows);
    words_ = device_array<std::int32_t>(6 * (rows + spare));
    spare_mask_ = rows * static_cast<std::size_t>(espalier::mask_words(capacity + 1));
    mask_ =
        device_array<std::uint32_t>(spare_mask_ + spare * static_cast<std::size_t>(espalier::mask_words(spare_rows)));
    sequences_ = device_array<batch_sequence>(static_cast<std::size_t>(n_sequences) + spare);
  }

  std::int32_t capacity() const { return capacity_; }
  std::int32_t n_sequences() const { return n_sequences_; }

  //! Makes the batch of these texts' trees. It has n_rows rows for each lane or, if `packed` is not 0, `packed` rows in
  //! all, of which a lane has n_rows at most. The addresses of the batch are always the same.
  //!
  //! Pre         if rows are packed, the trees have at most `packed` nodes in all; if they have more, the last nodes
  //!             are left out
  forward_batch_view compile(const text_batch& texts, std::int32_t n_rows, cudaStream_t stream,
                             std::int32_t packed = 0) const {
    if (n_rows < 1 || n_rows > capacity_ + 1) {
      raise<input_error>("a tree cannot be compiled into ", n_rows, " rows: this compiler has room for 1 to ",
                         capacity_ + 1, ".");
    }
    if (texts.n < 1 || texts.n > n_sequences_) {
      raise<input_error>(texts.n, " trees cannot be compiled: this compiler has room for 1 to ", n_sequences_, ".");
    }
    const std::size_t rows = words_.size() / 6;
    if (packed < 0 || packed > n_rows * texts.n) {
      raise<input_error>("trees of ", texts.n, " lanes cannot be packed into ", packed, " rows: 0 to ",
                         n_rows * texts.n, ".");
    }
    detail::compiled_rows out{
        arrays(), n_rows, packed, espalier::mask_words(n_rows), order_, words_.data(), words_.data() + rows};
    const auto fits = [&](int i) {
      const detail::tree_compile_tuning& by = detail::tree_compile_tunings[i];
      return n_rows <= by.threads * by.items;
    };
    const auto enqueue = fits(0) ? &launch_as<0> : fits(1) ? &launch_as<1> : fits(2) ? &launch_as<2> : &launch_as<3>;
    enqueue(texts, out, stream);
    const std::int32_t in_all = packed == 0 ? n_rows * texts.n : packed;
    return {.n_rows = in_all,
            .n_sequences = texts.n,
            .n_outputs = in_all,
            .max_context = texts.max_context,
            .tokens = out.tokens,
            .positions = out.positions,
            .slots = out.slots,
            .sequence_of = out.sequence_of,
            .sequences = out.sequences,
            .mask = out.mask,
            .outputs = nullptr};
  }

  //! The arrays of the batch, with the spare rows after the rows of trees.
  detail::batch_arrays arrays() const {
    const std::size_t rows = words_.size() / 6;
    std::int32_t* const first = words_.data() + 2 * rows;
    return {first, first + rows, first + 2 * rows, first + 3 * rows, sequences_.data(), mask_.data()};
  }
  //! Index of the first mask word that no tree uses.
  std::int32_t spare_mask() const { return static_cast<std::int32_t>(spare_mask_); }
  //! The node of each row within its lane, in the batch that was compiled last; no_node for a row without one. On the
  //! device.
  const node_id* nodes() const { return words_.data(); }
  //! The row of each node within its lane, in the batch that was compiled last; -1 for a node that is not there. On the
  //! device.
  const std::int32_t* rows() const { return words_.data() + words_.size() / 6; }

 private:
  template <int I>
  static void launch_as(const text_batch& texts, const detail::compiled_rows& out, cudaStream_t stream) {
    constexpr detail::tree_compile_tuning by = detail::tree_compile_tunings[I];
    launch("compile_trees", detail::compile_trees<by.threads, by.items, by.tile>,
           {.grid = dim3(static_cast<unsigned>((out.n_rows + by.tile - 1) / by.tile), static_cast<unsigned>(texts.n)),
            .threads = static_cast<unsigned>(by.threads),
            .shared_bytes = sizeof(detail::tree_compile_memory<by.threads, by.items, by.tile>)},
           stream, texts, out);
  }

  std::int32_t capacity_;
  std::int32_t n_sequences_;
  node_order order_;
  std::size_t spare_mask_ = 0;
  device_array<std::int32_t> words_;
  device_array<std::uint32_t> mask_;
  device_array<batch_sequence> sequences_;
};

}  // namespace espalier::cuda
