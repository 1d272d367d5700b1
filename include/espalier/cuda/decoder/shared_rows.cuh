// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "espalier/core/verdict.hpp"
#include "espalier/cuda/core/device_array.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/node_list.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/decoder/shared_rows/row_shares.cuh"
#include "espalier/cuda/decoder/shared_rows/text_gains.cuh"

namespace espalier::cuda::detail {

// Shares out the rows of a round's pass over the texts' trees: those rows are taken that are expected to gain most, to
// whichever text they belong, and a tree may be left with its root alone. What a row is expected to gain follows from
// the draft's probabilities, corrected by what each text's rounds have shown.
//
// Trees that are drawn (DrawsV): each text's limit is set before anything is drawn, from earlier rounds alone. The text
// gets the levels that are likeliest to be accepted, whatever will be drawn there. Other trees are grown whole, and cut
// to their most probable paths: no chance is involved, so a draft may be cut by what it is.
//
// Law         the distribution of no text depends on the shares: they follow from earlier rounds, or from a draft
//             without random numbers
template <bool DrawsV>
class shared_rows {
  using gains_type = std::conditional_t<DrawsV, level_gains, node_gains>;

 public:
  shared_rows(std::int32_t max_nodes, std::int32_t max_texts)
      : stride_(max_nodes + 1), gains_(static_cast<std::size_t>(max_texts)), shares_(gains_.size()) {
    if constexpr (!DrawsV) {
      now_ = device_array<node_id>(gains_.size() * static_cast<std::size_t>(stride_));
      was_ = device_array<node_id>(now_.size());
    }
  }

  // Forgets what was learnt from the last text in this place.
  void forget(std::int32_t place, cudaStream_t stream) const {
    launch("forget_gains", forget_gains<text_gains>, {}, stream, gains_.data() + place);
  }

  // Shares out n_rows rows over trees that have grown, or over trees that are still to be drawn. For i below n_sizes,
  // sets expected[i * from_next] to the number of tokens that all texts would gain in a pass of texts.n << i rows.
  void share(const text_batch& texts, std::int32_t n_rows, float* expected, std::ptrdiff_t from_next,
             std::int32_t n_sizes, cudaStream_t stream) const {
    launch("share_rows", share_rows<gains_type>, {.threads = share_threads, .shared_bytes = sizeof(share_memory)},
           stream, texts, {gains_.data(), shares_.data(), expected, from_next, n_sizes}, n_rows);
  }

  // Cuts the trees to their shares. Returns the earlier numbers of the nodes that are left.
  moved_nodes cut(const text_batch& texts, cudaStream_t stream) const requires(!DrawsV) {
    launch("cut_trees", cut_trees<gains_type>,
           {.grid = texts.lanes(), .threads = share_threads, .shared_bytes = sizeof(cut_memory)}, stream, texts,
           gains_.data(), shares_.data(), {now_.data(), was_.data(), stride_});
    return {was_.data(), stride_};
  }

  // Learns from the verdicts of a round. Shapes: decisions [places]
  void observe(const text_batch& texts, const verdict* decisions, cudaStream_t stream) const {
    launch("observe_gains", observe_gains<DrawsV>, {.grid = texts.lanes(), .threads = 32}, stream, texts, decisions,
           gains_.data());
  }

  const device_array<text_gains>& gains() const { return gains_; }

 private:
  std::int32_t stride_;
  device_array<text_gains> gains_;  // [places], as is shares_
  device_array<tree_share> shares_;
  device_array<node_id> now_, was_;  // [places][stride]
};

}  // namespace espalier::cuda::detail
