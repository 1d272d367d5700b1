// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/probabilities.hpp"
#include "espalier/core/row_origin.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/drafter.cuh"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/fault.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/path.cuh"
#include "espalier/cuda/core/prompt_chunk.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/core/text_rows.cuh"
#include "espalier/cuda/drafter/token_rows.cuh"
#include "espalier/sampling/sampler.hpp"

namespace espalier::cuda {

namespace detail {

inline constexpr int row_name_threads = 128;

// Gives each node of the lists the row of its depth. A text has n_rows rows; nodes below the last row get the last one.
// A thread block works for a lane.
//
// Shapes: row_of [places][n_nodes]
template <class NodesT>
ESPALIER_KERNEL void name_rows(text_batch texts, NodesT nodes, std::int32_t* row_of, std::int32_t n_nodes,
                               std::int32_t n_rows) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const node_id* const asked = nodes.of(here.place);
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < nodes.n; i += row_name_threads) {
    const node_id u = asked[i];
    if (u == no_node) continue;
    const std::int32_t depth = here.tree.depth[u];
    row_of[here.place * n_nodes + u] = here.place * n_rows + (depth < n_rows ? depth : n_rows - 1);
  }
}

// Gives nodes the rows that they had under their earlier numbers; a thread block works for a lane.
//
// Shapes: row_of, spare [places][n_nodes]
template <class MovedT>
ESPALIER_KERNEL void move_rows(text_batch texts, MovedT moved, std::int32_t* row_of, std::int32_t* spare,
                               std::int32_t n_nodes) {
  const text_in_batch here = texts.here();
  if (here.place < 0) return;
  const node_id* const was = moved.of(here.place);
  row_of += here.place * n_nodes, spare += here.place * n_nodes;
  const std::int32_t n = here.tree.size->n_nodes;
  for (auto v = static_cast<node_id>(threadIdx.x); v < n; v += row_name_threads)
    spare[v] = was[v] == no_node ? -1 : row_of[was[v]];
  __syncthreads();
  for (auto v = static_cast<node_id>(threadIdx.x); v < n; v += row_name_threads)
    row_of[v] = spare[v];
}

}  // namespace detail

//! espalier::factorised on the device: a StepDrafter of a BlockDrafter, so that every policy can grow trees over a
//! block. The row of a node is the marginal of its depth, whatever its path; or, if the block drafter corrects its rows
//! by path (ConditionedBlockDrafter), that marginal corrected.
//!
//! The block drafter is kept by reference when given as an lvalue, by value otherwise. If it reads the target's hidden
//! states, so does this drafter.
//!
//! Shapes      rows() [places][block_length][vocab], or [places][max_nodes + 1][vocab] if rows are corrected
//! Complexity  propose, for the root: the block's pass, one launch of the sampler over all its rows, and one that names
//!             the rows of nodes; for other nodes: the launch that names rows. If rows are corrected: the block's
//!             corrections, and the sampler over the nodes that are asked about. If columns are not tokens, one more
//!             launch after each of the sampler's. No synchronisation, no allocation
//! Law         StepDrafter's; given the same logits, the rows are the host's
//! Errors      the errors of the block drafter and of sampler; faults of the block's logits
//! Source      as espalier::factorised
template <class BlockDrafterT>
class factorised {
  using inner_type = std::remove_reference_t<BlockDrafterT>;
  static_assert(BlockDrafter<inner_type>, "the first argument must be a BlockDrafter on the device");
  using logits_type =
      decltype(std::declval<inner_type&>().propose_block(std::declval<const text_batch&>(), cudaStream_t{}));
  using number = std::remove_cvref_t<decltype(*std::declval<logits_type>().data)>;

 public:
  explicit factorised(BlockDrafterT&& inner, sampling_options sampling = {.temperature = 1.0F})
      : inner_(std::forward<BlockDrafterT>(inner)), rows_(sampling) {}

  std::int32_t vocab_size() const { return inner_.vocab_size(); }
  std::int32_t capacity() const { return inner_.capacity(); }

  //! Prepares for rounds whose trees are no deeper than n, and may be deeper than the block. Called before reserve();
  //! without it they may be as deep as they may have nodes.
  void limit_depth(std::int32_t n) requires CatchingUpDrafter<inner_type> {
    inner_.catch_up(n);
    is_limited_ = true;
  }

  void reserve(std::int32_t max_nodes, std::int32_t max_texts, fault* found) {
    if constexpr (CatchingUpDrafter<inner_type>) {
      if (!is_limited_) inner_.catch_up(max_nodes);
    }
    inner_.reserve(max_nodes, max_texts, found);
    found_ = found;
    n_nodes_ = max_nodes + 1;
    if constexpr (ConditionedBlockDrafter<inner_type>) {
      if (corrects()) inner_.reserve_corrections((std::max)(max_nodes, 1), max_texts);
    }
    n_rows_ = corrects() ? n_nodes_ : inner_.block_length();
    std::vector<node_id> depths(static_cast<std::size_t>(inner_.block_length()));
    std::iota(depths.begin(), depths.end(), 0);
    depths_ = device_array<node_id>(std::span<const node_id>(depths));
    const auto texts = static_cast<std::size_t>(max_texts);
    row_of_ = device_array<std::int32_t>(texts * static_cast<std::size_t>(n_nodes_));
    spare_ = device_array<std::int32_t>(row_of_.size());
    made_ = device_array<std::int32_t>(texts * static_cast<std::size_t>(n_rows_));
    rows_.reserve(n_rows_, max_texts, vocab_size(), columns(), tokens());
  }

  void begin(std::int32_t place, text_view text, std::span<const token_id> context, std::int32_t n_known,
             cudaStream_t stream) {
    inner_.begin(place, text, context, n_known, stream);
    is_open_ = false;
  }

  void ensure(std::int32_t place, std::int32_t n, cudaStream_t stream) { inner_.ensure(place, n, stream); }
  void release(std::int32_t place) requires ReleasingDrafter<inner_type> { inner_.release(place); }

  //! Passes hidden states on to the block drafter, as FeatureDrafter says.
  template <class BackendT>
  requires FeatureDrafter<inner_type, BackendT>
  void read(const BackendT& backend, std::int32_t place, std::int32_t first, std::int32_t n, cudaStream_t stream) {
    inner_.read(backend, place, first, n, stream);
  }
  template <class BackendT>
  requires FeatureDrafter<inner_type, BackendT>
  void read(const BackendT& backend, const text_batch& texts, path_view path, const batch_sequence* lanes,
            cudaStream_t stream) {
    inner_.read(backend, texts, path, lanes, stream);
  }
  template <class BackendT>
  requires FeatureDrafter<inner_type, BackendT>
  void read(const BackendT& backend, const prompt_chunk* chunks, std::int32_t n_chunks, std::int32_t n_rows,
            cudaStream_t stream) {
    inner_.read(backend, chunks, n_chunks, n_rows, stream);
  }

  void propose(const text_batch& texts, node_list nodes, cudaStream_t stream) {
    if (!is_open_) {
      row_of_.fill_bytes(0xFF, stream);
      const logits_type logits = inner_.propose_block(texts, stream);
      if (!corrects()) {
        rows_.make(logits, texts, {depths_.data(), n_rows_, 0}, made_.data(), found_, row_origin::of_block(0), stream);
      }
    }
    is_open_ = true;
    if constexpr (ConditionedBlockDrafter<inner_type>) {
      if (corrects()) {
        return rows_.make(inner_.corrected(texts, nodes, stream), texts, nodes, row_of_.data(), found_,
                          row_origin::after_node(row_origin::model::draft, 0, root_node), stream);
      }
    }
    launch("name_rows", detail::name_rows<node_list>, {.grid = texts.lanes(), .threads = detail::row_name_threads},
           stream, texts, nodes, row_of_.data(), n_nodes_, n_rows_);
  }

  text_rows rows() const { return {rows_.all(), row_of_.data(), n_nodes_}; }

  void renumber(const text_batch& texts, moved_nodes moved, cudaStream_t stream) const {
    launch("move_rows", detail::move_rows<moved_nodes>, {.grid = texts.lanes(), .threads = detail::row_name_threads},
           stream, texts, moved, row_of_.data(), spare_.data(), n_nodes_);
  }

  void commit(const text_batch& texts, path_view path, cudaStream_t stream) {
    inner_.commit(texts, path, stream);
    is_open_ = false;
  }

 private:
  bool corrects() const {
    if constexpr (ConditionedBlockDrafter<inner_type>) return inner_.corrects();
    return false;
  }

  std::int32_t columns() const {
    if constexpr (requires { inner_.columns(); }) return inner_.columns();
    return vocab_size();
  }

  const token_id* tokens() const {
    if constexpr (requires { inner_.tokens(); }) return inner_.tokens();
    return nullptr;
  }

  BlockDrafterT inner_;
  detail::token_rows<number> rows_;
  fault* found_ = nullptr;
  std::int32_t n_nodes_ = 0;           // nodes of a tree, root included
  std::int32_t n_rows_ = 0;            // rows of a text: by depth, or by node if rows are corrected
  device_array<node_id> depths_;       // [block_length] 0, 1, 2, ...
  device_array<std::int32_t> row_of_;  // [places][n_nodes]
  device_array<std::int32_t> spare_;   // [places][n_nodes]
  device_array<std::int32_t> made_;    // [places][n_rows] the sampler's notes about rows by depth, which nobody reads
  bool is_limited_ = false;            // whether limit_depth() was called
  bool is_open_ = false;               // whether nodes were asked about in the round that is being enqueued
};

template <class BlockDrafterT>
factorised(BlockDrafterT&&) -> factorised<BlockDrafterT>;
template <class BlockDrafterT>
factorised(BlockDrafterT&&, sampling_options) -> factorised<BlockDrafterT>;

}  // namespace espalier::cuda
