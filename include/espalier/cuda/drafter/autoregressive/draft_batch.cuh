// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/core/tree_writer.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text.cuh"

namespace espalier::cuda {

namespace detail {

// The draft model's round in the memory of the device. Scratch rows begin where the draft cache is sure to end: `base`,
// two tokens before the text's end. These two are forwarded anew each round: the first of them was, if not as the last
// accepted node, and then the same numbers are written again.
struct draft_columns {
  std::int32_t base;       // committed rows of the draft's cache
  std::int32_t n_pending;  // 2, or 1 for a text of one token
  std::int32_t n_columns;  // scratch rows so far
  std::int32_t n_kept;
};

struct draft_memory {
  token_id* tokens;
  std::int32_t* positions;
  std::int32_t* slots;
  std::int32_t* sequence_of;
  batch_sequence* sequence;
  std::uint32_t* mask;
  std::int32_t words;
  std::int32_t id;  // of the sequence in the store
  draft_columns* columns;
  std::int32_t* column_of;  // [nodes], -1 where nobody asked
  std::int32_t* kept;
  node_id* asked;          // [rows] the nodes of the last batch's outputs, no_node for padding
  std::int32_t max_nodes;  // root included
  std::int32_t capacity;   // tokens that the draft's cache can hold
};

__device__ inline void pad_row(const draft_memory& to, std::int32_t row) {
  to.tokens[row] = 0;
  to.positions[row] = 0;
  to.slots[row] = -1;
  to.sequence_of[row] = -1;
}

__device__ inline mask_row place_row(const draft_memory& to, std::int32_t row, token_id token, std::int32_t position,
                                     std::int32_t base, std::int32_t column) {
  to.tokens[row] = token;
  to.positions[row] = position;
  to.slots[row] = base + column;
  to.sequence_of[row] = 0;
  const mask_row mask{to.mask + static_cast<std::ptrdiff_t>(row) * to.words, to.words};
  mask.clear();
  mask.set(column);
  return mask;
}

// One block. Rows 0 and 1: the last two tokens of the text; padding where it is longer than the draft can read.
template <class UnusedT = void>
ESPALIER_KERNEL void draft_root(draft_memory to, text_view text) {
  for (std::int32_t u = static_cast<std::int32_t>(threadIdx.x); u < to.max_nodes;
       u += static_cast<std::int32_t>(blockDim.x))
    to.column_of[u] = -1;
  __syncthreads();
  if (threadIdx.x != 0) return;
  const std::int32_t size = text.state->size;
  const std::int32_t n = size > to.capacity ? 0 : (size < 2 ? size : 2);
  const std::int32_t base = size - n;
  *to.columns = {base, n, n, 0};
  *to.sequence = {to.id, 0, 2, base, 0, to.words};
  to.asked[0] = n > 0 ? root_node : no_node;
  for (std::int32_t row = 0; row < 2 - n; ++row)
    pad_row(to, row);
  for (std::int32_t i = 0; i < n; ++i) {
    const mask_row mask = place_row(to, 2 - n + i, text.tokens[base + i], base + i, base, i);
    if (i > 0) mask.set(0);
  }
  to.column_of[root_node] = n - 1;
}

template <unsigned ThreadsV>
struct draft_level_memory {
  using scan = cub::BlockScan<std::int32_t, ThreadsV>;
  typename scan::TempStorage scan_storage;
};

// One block, a thread a node, some at a time: each node that is there gets the next scratch row, in the order of the
// list.
template <unsigned ThreadsV>
ESPALIER_KERNEL void draft_level(draft_memory to, text_view text, tree_writer tree, node_list nodes) {
  using memory = draft_level_memory<ThreadsV>;
  auto& shared = *reinterpret_cast<memory*>(shared_memory());
  const draft_columns columns = *to.columns;
  const std::int32_t root_position = text.state->size - 1;
  std::int32_t next = columns.n_columns;
  const std::int32_t rounds = (nodes.n + static_cast<std::int32_t>(ThreadsV) - 1) / static_cast<std::int32_t>(ThreadsV);
  for (std::int32_t i = 0; i < rounds; ++i) {
    const std::int32_t row = i * static_cast<std::int32_t>(ThreadsV) + static_cast<std::int32_t>(threadIdx.x);
    const node_id u = row < nodes.n ? nodes.nodes[row] : no_node;
    std::int32_t before = 0, n = 0;
    typename memory::scan(shared.scan_storage).ExclusiveSum(u == no_node ? 0 : 1, before, n);
    if (row < nodes.n) to.asked[row] = u;
    if (u != no_node) {
      const std::int32_t column = next + before;
      to.column_of[u] = column;
      const mask_row mask = place_row(to, row, tree.token[u], root_position + tree.depth[u], columns.base, column);
      mask.set(0);
      for (node_id above = tree.parent[u]; above != no_node; above = tree.parent[above])
        mask.set(to.column_of[above]);
    } else if (row < nodes.n) {
      pad_row(to, row);
    }
    next += n;
    __syncthreads();
  }
  if (threadIdx.x == 0) {
    to.columns->n_columns = next;
    *to.sequence = {to.id, 0, nodes.n, columns.base, 0, to.words};
  }
}

// One thread: the scratch rows of the accepted path, as far as they were asked about.
template <class UnusedT = void>
ESPALIER_KERNEL void draft_kept(draft_memory to, path_view path) {
  draft_columns& columns = *to.columns;
  columns.n_kept = 0;
  if (*path.n == 0) return;
  while (columns.n_kept < columns.n_pending) {
    to.kept[columns.n_kept] = columns.n_kept;
    ++columns.n_kept;
  }
  for (std::int32_t i = 1; i < *path.n && to.column_of[path.nodes[i]] >= 0; ++i)
    to.kept[columns.n_kept++] = to.column_of[path.nodes[i]];
}

}  // namespace detail

//! The forward batches of a draft model that is asked layer by layer: which scratch row of its cache each node has, and
//! what it sees.
//!
//! Complexity  each verb one launch of one block; no synchronisation, no allocation
//! Law         scratch rows are given in the order in which nodes are asked about, so that those of a path ascend
class draft_batch {
 public:
  draft_batch() = default;

  //! Batches of trees of this many nodes, root not counted, in the store's `sequence`, which can hold `capacity`
  //! tokens.
  draft_batch(std::int32_t max_nodes, std::int32_t sequence, text_view text, std::int32_t capacity)
      : max_nodes_(max_nodes), sequence_(sequence), capacity_(capacity), text_(text) {
    const auto rows = static_cast<std::size_t>(max_nodes < 2 ? 2 : max_nodes);
    const auto nodes = static_cast<std::size_t>(max_nodes) + 1;
    words_ = mask_words(max_nodes + 2);
    numbers_ = device_array<std::int32_t>(5 * rows + 2 * nodes + 1);
    mask_ = device_array<std::uint32_t>(rows * static_cast<std::size_t>(words_));
    batch_sequence_ = device_array<batch_sequence>(1);
    columns_ = device_array<detail::draft_columns>(1);
    const std::int32_t last = 1;
    output_ = device_array<std::int32_t>(std::span<const std::int32_t>(&last, 1));
  }

  //! The round begins: two rows, of which the second is the root's and alone gives logits.
  forward_batch_view root(std::int32_t max_context, cudaStream_t stream) const {
    launch("draft_root", detail::draft_root<>, {.threads = 256}, stream, memory(), text_);
    return view(2, max_context, output_.data());
  }

  //! A row for each entry of the list. Pre: nodes.n <= max_nodes; each was never asked about in this round, its parent
  //! was.
  forward_batch_view level(tree_writer tree, node_list nodes, std::int32_t max_context, cudaStream_t stream) const {
    constexpr unsigned threads = 256;
    launch("draft_level", detail::draft_level<threads>,
           {.threads = threads, .shared_bytes = sizeof(detail::draft_level_memory<threads>)}, stream, memory(), text_,
           tree, nodes);
    return view(nodes.n, max_context, nullptr);
  }

  //! Commits the accepted path's rows in the draft's cache.
  template <class KVStoreT>
  void commit(KVStoreT& kv, path_view path, cudaStream_t stream) const {
    const detail::draft_memory m = memory();
    launch("draft_kept", detail::draft_kept<>, {}, stream, m, path);
    kv.commit(sequence_, &m.columns->base, m.kept, &m.columns->n_kept, max_nodes_ + 2, stream);
  }

  //! The nodes whose logits the last batch of n outputs gives, in order.
  node_list asked(std::int32_t n) const { return {memory().asked, n}; }

 private:
  detail::draft_memory memory() const {
    const std::int32_t rows = max_nodes_ < 2 ? 2 : max_nodes_;
    detail::draft_memory m{};
    m.tokens = numbers_.data();
    m.positions = m.tokens + rows;
    m.slots = m.positions + rows;
    m.sequence_of = m.slots + rows;
    m.asked = m.sequence_of + rows;
    m.column_of = m.asked + rows;
    m.kept = m.column_of + max_nodes_ + 1;
    m.sequence = batch_sequence_.data();
    m.mask = mask_.data();
    m.words = words_;
    m.id = sequence_;
    m.columns = columns_.data();
    m.max_nodes = max_nodes_ + 1;
    m.capacity = capacity_;
    return m;
  }

  forward_batch_view view(std::int32_t n_rows, std::int32_t max_context, const std::int32_t* outputs) const {
    const detail::draft_memory m = memory();
    forward_batch_view batch;
    batch.n_rows = n_rows;
    batch.n_sequences = 1;
    batch.n_outputs = outputs == nullptr ? n_rows : 1;
    batch.max_context = max_context;
    batch.tokens = m.tokens;
    batch.positions = m.positions;
    batch.slots = m.slots;
    batch.sequence_of = m.sequence_of;
    batch.sequences = m.sequence;
    batch.mask = m.mask;
    batch.outputs = outputs;
    return batch;
  }

  std::int32_t max_nodes_ = 0;
  std::int32_t sequence_ = 0;
  std::int32_t words_ = 0;
  std::int32_t capacity_ = 0;
  text_view text_;
  device_array<std::int32_t> numbers_;
  device_array<std::uint32_t> mask_;
  device_array<batch_sequence> batch_sequence_;
  device_array<detail::draft_columns> columns_;
  device_array<std::int32_t> output_;
};

}  // namespace espalier::cuda
