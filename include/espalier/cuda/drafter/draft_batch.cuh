// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/decoder/decoder.cu
#pragma once

#include <cuda_runtime.h>
#include <cub/block/block_scan.cuh>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/core/tree_mask.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/core/text_batch.cuh"

namespace espalier::cuda {

namespace detail {

// The rows that a round gives to a text in the draft's cache. Scratch rows begin at `base`, up to which the draft's
// cache is sure to have the text. The last n_pending tokens of the text may be missing: the pending token, and the last
// accepted node if the model was not asked about it; in a joint, every token that another drafter may have brought in;
// of a draft head, every token that a round may have accepted. They are forwarded anew in each round, whether they are
// missing or not.
struct draft_columns {
  std::int32_t base;       // number of committed rows of the draft's cache
  std::int32_t n_pending;  // number of tokens that may be missing; of a shorter text, all that have a row
  std::int32_t n_columns;  // number of scratch rows so far
};

// The arrays of the draft model's passes and rounds, in the memory of the device.
//
// Shapes      of a pass, one lane after the other: tokens, positions, slots, sequence_of [lanes][rows], mask
//             [lanes][rows][words], sequences [lanes]. By place: columns, base, n_kept [places]; column_of
//             [places][nodes]: scratch row of a node, -1 if it was not asked about; kept [places][most_kept]; asked
//             [places][rows]: the nodes of the last pass's outputs, no_node for padding; before [places][2]: the node
//             that stands for the token before the pending one, no_node if the text has no such token, and no_node;
//             nullptr if the row of that token is not kept; reads, of a pass of a draft head [lanes][rows]: the scratch
//             row of a node's parent; for a token of the text -1, or -2 if no token is before it; else nullptr
struct draft_memory {
  token_id* tokens;
  std::int32_t* positions;
  std::int32_t* slots;
  std::int32_t* sequence_of;
  batch_sequence* sequences;
  std::uint32_t* mask;
  std::int32_t words;
  draft_columns* columns;
  std::int32_t* column_of;
  std::int32_t* kept;
  std::int32_t* base;
  std::int32_t* n_kept;
  node_id* asked;
  node_id* before;
  std::int32_t* reads;
  std::int32_t max_rows;   // rows of a lane
  std::int32_t max_nodes;  // nodes of a tree, root included, and the node that stands for a token if there is one
  std::int32_t n_pending;  // tokens that the draft's cache may lack when a round begins
  std::int32_t most_kept;
  std::int32_t capacity;  // tokens that the draft's cache can hold
};

__device__ inline void pad_row(const draft_memory& to, std::int32_t row) {
  to.tokens[row] = 0;
  to.positions[row] = 0;
  to.slots[row] = -1;
  to.sequence_of[row] = -1;
  if (to.reads != nullptr) to.reads[row] = -1;
}

// The rows of one text in a pass, to be written.
struct draft_lane {
  const draft_memory& to;
  const text_in_batch& here;
  std::int32_t n_rows;  // rows of each lane

  __device__ std::int32_t row(std::int32_t i) const { return here.lane * n_rows + i; }
  __device__ std::int32_t* column_of() const {
    return to.column_of + static_cast<std::ptrdiff_t>(here.place) * to.max_nodes;
  }
  __device__ node_id* asked() const { return to.asked + static_cast<std::ptrdiff_t>(here.place) * to.max_rows; }

  // Number of leading tokens of the text that have no row: a draft head's rows begin with token 1, unless the text ends
  // before it.
  __device__ std::int32_t n_rowless() const { return to.reads != nullptr && here.text.state->size > 1 ? 1 : 0; }

  __device__ void open(std::int32_t sequence, std::int32_t base) const {
    to.sequences[here.lane] = {sequence, row(0), row(n_rows), base, row(0) * to.words, to.words};
  }
  __device__ mask_row place(std::int32_t i, token_id token, std::int32_t position, std::int32_t base,
                            std::int32_t column, std::int32_t reads) const {
    const std::int32_t at = row(i);
    to.tokens[at] = token;
    to.positions[at] = position;
    to.slots[at] = base + column;
    to.sequence_of[at] = here.lane;
    if (to.reads != nullptr) to.reads[at] = reads;
    const mask_row mask{to.mask + static_cast<std::ptrdiff_t>(at) * to.words, to.words};
    mask.clear();
    mask.set(column);
    return mask;
  }
};

// Makes all rows of a lane padding, if the lane has no text. Called by a block.
__device__ inline void pad_lane(const draft_memory& to, std::int32_t lane, std::int32_t n_rows) {
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n_rows; i += static_cast<std::int32_t>(blockDim.x))
    pad_row(to, lane * n_rows + i);
  if (threadIdx.x == 0) to.sequences[lane] = {0, lane * n_rows, lane * n_rows, 0, 0, to.words};
}

// Writes the first rows of a round; a block works for a lane. They are the last n_pending tokens of the text; all rows
// are padding if the text is longer than the draft can read.
template <class UnusedT = void>
ESPALIER_KERNEL void draft_root(draft_memory to, text_batch texts) {
  const text_in_batch here = texts.here();
  const std::int32_t n_rows = to.n_pending;
  if (here.place < 0) return pad_lane(to, here.lane, n_rows);
  const draft_lane lane{to, here, n_rows};
  const auto thread = static_cast<std::int32_t>(threadIdx.x), threads = static_cast<std::int32_t>(blockDim.x);
  for (std::int32_t u = thread; u < to.max_nodes; u += threads)
    lane.column_of()[u] = -1;
  __syncthreads();
  const std::int32_t size = here.text.state->size, rowless = lane.n_rowless(), rows = size - rowless;
  const std::int32_t n = size > to.capacity ? 0 : (rows < n_rows ? rows : n_rows);
  const std::int32_t base = n > 0 ? rows - n : 0;
  for (std::int32_t i = thread; i < n_rows - n; i += threads)
    pad_row(to, lane.row(i));
  for (std::int32_t i = thread; i < n; i += threads) {
    const mask_row mask =
        lane.place(n_rows - n + i, here.text.tokens[rowless + base + i], base + i, base, i, size > 1 ? -1 : -2);
    for (std::int32_t above = 0; above < i; ++above)
      mask.set(above);
  }
  if (thread != 0) return;
  to.columns[here.place] = {base, n, n};
  lane.open(texts.first_sequence + here.place, base);
  const node_id root = n > 0 ? root_node : no_node;
  if (to.before == nullptr) {
    lane.asked()[0] = root;
  } else {
    lane.asked()[0] = no_node;
    lane.asked()[1] = root;
    to.before[2 * here.place] = n > 1 ? to.max_nodes - 1 : no_node;
    to.before[2 * here.place + 1] = no_node;
  }
  lane.column_of()[root_node] = n - 1;
}

template <unsigned ThreadsV>
struct draft_level_memory {
  using scan = cub::BlockScan<std::int32_t, ThreadsV>;
  typename scan::TempStorage scan_storage;
};

// Writes the rows of one level; a block works for a lane, a thread for a node. Each node of the list gets the next
// scratch row, in the order of the list.
template <unsigned ThreadsV>
ESPALIER_KERNEL void draft_level(draft_memory to, text_batch texts, node_list nodes) {
  using memory = draft_level_memory<ThreadsV>;
  const text_in_batch here = texts.here();
  if (here.place < 0) return pad_lane(to, here.lane, nodes.n);
  auto& shared = *reinterpret_cast<memory*>(shared_memory());
  const draft_lane lane{to, here, nodes.n};
  const node_id* const wanted = nodes.of(here.place);
  const draft_columns columns = to.columns[here.place];
  const std::int32_t root_position = here.text.state->size - 1 - lane.n_rowless();
  std::int32_t next = columns.n_columns;
  const std::int32_t rounds = (nodes.n + static_cast<std::int32_t>(ThreadsV) - 1) / static_cast<std::int32_t>(ThreadsV);
  for (std::int32_t round = 0; round < rounds; ++round) {
    const std::int32_t i = round * static_cast<std::int32_t>(ThreadsV) + static_cast<std::int32_t>(threadIdx.x);
    const node_id u = i < nodes.n ? wanted[i] : no_node;
    std::int32_t before = 0, n = 0;
    typename memory::scan(shared.scan_storage).ExclusiveSum(u == no_node ? 0 : 1, before, n);
    if (i < nodes.n) lane.asked()[i] = u;
    if (u != no_node) {
      const std::int32_t column = next + before;
      lane.column_of()[u] = column;
      const mask_row mask = lane.place(i, here.tree.token[u], root_position + here.tree.depth[u], columns.base, column,
                                       lane.column_of()[here.tree.parent[u]]);
      for (std::int32_t pending = 0; pending < columns.n_pending; ++pending)
        mask.set(pending);
      for (node_id above = here.tree.parent[u]; above > root_node; above = here.tree.parent[above])
        mask.set(lane.column_of()[above]);
    } else if (i < nodes.n) {
      pad_row(to, lane.row(i));
    }
    next += n;
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  to.columns[here.place].n_columns = next;
  lane.open(texts.first_sequence + here.place, columns.base);
}

// Lists the scratch rows of the accepted path, up to the first node that was not asked about; one thread works for a
// lane.
template <class UnusedT = void>
ESPALIER_KERNEL void draft_kept(draft_memory to, text_batch texts, path_view paths) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const draft_lane lane{to, here, 0};
  const path_view path = paths.of(here.place);
  const draft_columns columns = to.columns[here.place];
  std::int32_t* const kept = to.kept + static_cast<std::ptrdiff_t>(here.place) * to.most_kept;
  std::int32_t n = 0;
  if (*path.n > 0) {
    while (n < columns.n_pending) {
      kept[n] = n;
      ++n;
    }
    for (std::int32_t i = 1; i < *path.n && lane.column_of()[path.nodes[i]] >= 0; ++i)
      kept[n++] = lane.column_of()[path.nodes[i]];
  }
  to.base[here.place] = columns.base;
  to.n_kept[here.place] = n;
}

inline constexpr unsigned move_threads = 256;

// Reorders arrays by node after the tree was cut or built anew; a block works for a lane.
//
// Shapes      column_of, row_of [places][max_nodes], spare [places][2 * max_nodes]
template <class NodesT>
ESPALIER_KERNEL void move_columns(text_batch texts, NodesT moved, std::int32_t* column_of, std::int32_t* row_of,
                                  std::int32_t* spare, std::int32_t max_nodes) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const node_id* const was = moved.of(here.place);
  column_of += static_cast<std::ptrdiff_t>(here.place) * max_nodes;
  row_of += static_cast<std::ptrdiff_t>(here.place) * max_nodes;
  spare += static_cast<std::ptrdiff_t>(here.place) * 2 * max_nodes;
  const std::int32_t n = here.tree.size->n_nodes;
  for (auto v = static_cast<node_id>(threadIdx.x); v < n; v += static_cast<node_id>(move_threads)) {
    spare[v] = was[v] == no_node ? -1 : column_of[was[v]];
    spare[max_nodes + v] = was[v] == no_node ? -1 : row_of[was[v]];
  }
  __syncthreads();
  for (auto v = static_cast<node_id>(threadIdx.x); v < n; v += static_cast<node_id>(move_threads))
    column_of[v] = spare[v], row_of[v] = spare[max_nodes + v];
}

}  // namespace detail

//! The forward batches of a draft model that is asked level by level about the trees of several texts. The object knows
//! which scratch row of the draft's cache each node has, and which rows each node sees.
//!
//! Complexity  root, level, renumber: one launch with a block for each lane; commit: one launch with a thread for each
//!             lane, and the store's commit. No synchronisation, no allocation
//! Law         scratch rows are given in the order in which nodes are asked about, so that the scratch rows of a path
//!             ascend
class draft_batch {
 public:
  draft_batch() = default;

  //! Takes memory for max_texts texts with trees of max_nodes nodes, root not counted. The texts' sequences in the
  //! store begin with number `sequence` and can hold `capacity` tokens. When a round begins, the store may lack the
  //! last n_pending tokens of each text. With `keeps_previous`, root() also gives the logits of the token before the
  //! pending one, as those of node number max_nodes, which then is no node of a tree. With `of_head` the batches are
  //! those of a draft head, which has no row for a text's first token: token i + 1 has row i, at position i, and
  //! reads() says which state each row reads. A text of one token has a row for it, which stands before no later text.
  draft_batch(std::int32_t max_nodes, std::int32_t max_texts, std::int32_t sequence, std::int32_t capacity,
              std::int32_t n_pending, bool keeps_previous, bool of_head = false)
      : max_nodes_(max_nodes),
        n_pending_(n_pending),
        sequence_(sequence),
        capacity_(capacity),
        words_(mask_words(max_nodes + n_pending)) {
    const auto texts = static_cast<std::size_t>(max_texts);
    const std::size_t rows = texts * static_cast<std::size_t>(max_rows());
    tokens_ = device_array<token_id>(rows);
    positions_ = device_array<std::int32_t>(rows);
    slots_ = device_array<std::int32_t>(rows);
    sequence_of_ = device_array<std::int32_t>(rows);
    asked_ = device_array<node_id>(rows);
    mask_ = device_array<std::uint32_t>(rows * static_cast<std::size_t>(words_));
    sequences_ = device_array<batch_sequence>(texts);
    columns_ = device_array<detail::draft_columns>(texts);
    column_of_ = device_array<std::int32_t>(texts * (static_cast<std::size_t>(max_nodes) + 1));
    spare_ = device_array<std::int32_t>(2 * column_of_.size());
    kept_ = device_array<std::int32_t>(texts * static_cast<std::size_t>(most_kept()));
    base_ = device_array<std::int32_t>(texts);
    n_kept_ = device_array<std::int32_t>(texts);
    if (keeps_previous) before_ = device_array<node_id>(2 * texts);
    if (of_head) reads_ = device_array<std::int32_t>(rows);
    std::vector<std::int32_t> last;
    for (std::int32_t end = n_pending; end <= max_texts * n_pending; end += n_pending) {
      if (keeps_previous) last.push_back(end - 2);
      last.push_back(end - 1);
    }
    outputs_ = device_array<std::int32_t>(std::span<const std::int32_t>(last));
  }

  //! Begins a round, and returns its first batch, with n_pending rows for each lane. The last of them is the root's,
  //! and it alone gives logits, or, with `keeps_previous`, it and the one before it.
  forward_batch_view root(const text_batch& texts, cudaStream_t stream) const {
    launch("draft_root", detail::draft_root<>, {.grid = texts.lanes(), .threads = 256}, stream, memory(),
           texts.in_sequences_from(sequence_));
    forward_batch_view batch = view(texts, n_pending_);
    batch.n_outputs = texts.n * (before_.size() > 0 ? 2 : 1);
    batch.outputs = outputs_.data();
    return batch;
  }

  //! Returns the batch with a row for each entry of the list. Pre: nodes.n <= max_nodes; in this round none of the
  //! nodes was asked about before, and each node's parent was
  forward_batch_view level(const text_batch& texts, node_list nodes, cudaStream_t stream) const {
    constexpr unsigned threads = 256;
    launch("draft_level", detail::draft_level<threads>,
           {.grid = texts.lanes(), .threads = threads, .shared_bytes = sizeof(detail::draft_level_memory<threads>)},
           stream, memory(), texts.in_sequences_from(sequence_), nodes);
    return view(texts, nodes.n);
  }

  //! Gives nodes their new numbers, after the trees were cut or built anew. row_of, an array by node, is reordered in
  //! the same way. Shapes: row_of [places][max_nodes + 1]
  void renumber(const text_batch& texts, moved_nodes moved, std::int32_t* row_of, cudaStream_t stream) const {
    launch("move_columns", detail::move_columns<moved_nodes>, {.grid = texts.lanes(), .threads = detail::move_threads},
           stream, texts, moved, column_of_.data(), row_of, spare_.data(), max_nodes_ + 1);
  }

  //! Commits, in the draft's cache, the rows of each accepted path up to the first node that was not asked about.
  template <class KVStoreT>
  void commit(KVStoreT& kv, const text_batch& texts, path_view path, cudaStream_t stream) const {
    launch("draft_kept", detail::draft_kept<>, {.grid = texts.lanes()}, stream, memory(), texts, path);
    kv.commit(texts.in_sequences_from(sequence_), {base_.data(), kept_.data(), n_kept_.data(), most_kept()}, stream);
  }

  //! The nodes whose logits the last batch gives, n of each lane, in order.
  node_list asked(std::int32_t n) const { return {asked_.data(), n, max_rows()}; }
  //! The nodes that stand for the tokens before the pending ones, as asked() of the first batch of a round.
  node_list before() const { return {before_.data(), 2, 2}; }
  //! The states that the rows of the last batch read: the scratch row of a node's parent; for a token of the text -1,
  //! or -2 if no token is before it. Shapes: [n_rows]
  const std::int32_t* reads() const { return reads_.data(); }

 private:
  std::int32_t max_rows() const { return max_nodes_ < n_pending_ ? n_pending_ : max_nodes_; }
  std::int32_t most_kept() const { return max_nodes_ + n_pending_; }

  detail::draft_memory memory() const {
    return {.tokens = tokens_.data(),
            .positions = positions_.data(),
            .slots = slots_.data(),
            .sequence_of = sequence_of_.data(),
            .sequences = sequences_.data(),
            .mask = mask_.data(),
            .words = words_,
            .columns = columns_.data(),
            .column_of = column_of_.data(),
            .kept = kept_.data(),
            .base = base_.data(),
            .n_kept = n_kept_.data(),
            .asked = asked_.data(),
            .before = before_.data(),
            .reads = reads_.data(),
            .max_rows = max_rows(),
            .max_nodes = max_nodes_ + 1,
            .n_pending = n_pending_,
            .most_kept = most_kept(),
            .capacity = capacity_};
  }

  // The batch of n rows for each lane.
  forward_batch_view view(const text_batch& texts, std::int32_t n) const {
    forward_batch_view batch;
    batch.n_rows = batch.n_outputs = n * texts.n;
    batch.n_sequences = texts.n;
    batch.max_context = texts.max_context < capacity_ ? texts.max_context : capacity_;
    batch.tokens = tokens_.data();
    batch.positions = positions_.data();
    batch.slots = slots_.data();
    batch.sequence_of = sequence_of_.data();
    batch.sequences = sequences_.data();
    batch.mask = mask_.data();
    return batch;
  }

  std::int32_t max_nodes_ = 0;
  std::int32_t n_pending_ = 2;
  std::int32_t sequence_ = 0;
  std::int32_t capacity_ = 0;
  std::int32_t words_ = 0;
  device_array<token_id> tokens_;
  device_array<std::int32_t> positions_;
  device_array<std::int32_t> slots_;
  device_array<std::int32_t> sequence_of_;
  device_array<node_id> asked_;
  device_array<node_id> before_;
  device_array<std::int32_t> reads_;
  device_array<std::uint32_t> mask_;
  device_array<batch_sequence> sequences_;
  device_array<detail::draft_columns> columns_;
  device_array<std::int32_t> column_of_;
  device_array<std::int32_t> spare_;
  device_array<std::int32_t> kept_;
  device_array<std::int32_t> base_;
  device_array<std::int32_t> n_kept_;
  device_array<std::int32_t> outputs_;  // [texts] the last row of each lane; [texts][2] the last two
};

}  // namespace espalier::cuda
