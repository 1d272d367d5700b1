// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/core/token.hpp"
#include "espalier/cuda/concepts/state_rows.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/text_batch.cuh"
#include "espalier/cuda/model/llama/number.cuh"

namespace espalier::cuda::detail {

// The rows of one pass of a block draft, written by the device: the fields of a forward_batch_view, a sequence for each
// lane, each with as many rows. The sequence's number is the text's place.
//
// Shapes: positions (and slots), sequence_of [rows]; mask [rows][words], all rows of a lane see each other; sequences,
// pending [lanes]
struct block_draft_rows {
  std::int32_t* positions;
  std::int32_t* sequence_of;
  batch_sequence* sequences;
  std::uint32_t* mask;
  token_id* pending;

  forward_batch_view view(std::int32_t n_lanes, std::int32_t n, std::int32_t max_context) const {
    forward_batch_view batch;
    batch.n_rows = n_lanes * n;
    batch.n_sequences = n_lanes;
    batch.max_context = max_context;
    batch.positions = batch.slots = positions;
    batch.sequence_of = sequence_of;
    batch.sequences = sequences;
    batch.mask = mask;
    return batch;
  }
};

inline constexpr int block_row_threads = 128;
inline constexpr int max_read_layers = 64;

// The target's hidden states of rows whose turn it is, one layer beside the other.
//
// Shapes: hidden[l] [rows of the target][width]; features [rows][layers][width]
template <class NumberT>
struct gather_job {
  const float* hidden[max_read_layers];
  std::int32_t n_layers;
  std::int32_t width;
  std::int32_t max_positions;
  NumberT* features;
};

// Block (i, lane). Rows that are not there, or stand beyond the last position, become padding.
template <class NumberT>
ESPALIER_KERNEL void gather_states(gather_job<NumberT> job, state_rows from, block_draft_rows to) {
  const auto lane = static_cast<std::int32_t>(blockIdx.y), n = static_cast<std::int32_t>(gridDim.x);
  const std::int32_t i = lane * n + static_cast<std::int32_t>(blockIdx.x);
  const state_rows::entry entry = from.at(lane, static_cast<std::int32_t>(blockIdx.x));
  const bool is_there = entry.place >= 0 && entry.position < job.max_positions;
  if (threadIdx.x == 0) {
    to.positions[i] = is_there ? entry.position : -1;
    to.sequence_of[i] = is_there ? lane : -1;
    if (blockIdx.x == 0) to.sequences[lane] = {entry.place, lane * n, (lane + 1) * n, 0, 0, 0};
  }
  const std::int64_t row = is_there ? entry.row : 0;
  NumberT* features = job.features + static_cast<std::int64_t>(i) * job.n_layers * job.width;
  for (std::int32_t layer = 0; layer < job.n_layers; ++layer) {
    const float* state = job.hidden[layer] + row * job.width;
    for (auto k = static_cast<std::int32_t>(threadIdx.x); k < job.width; k += block_row_threads)
      features[layer * job.width + k] = is_there ? NumberT(state[k]) : NumberT(0.0F);
  }
}

// One block a row: what keys and values come from is kept by position.
//
// Shapes: states [rows][width]; kept [places][max_positions][width]
template <class NumberT>
ESPALIER_KERNEL void keep_states(const NumberT* states, NumberT* kept, std::int32_t width, std::int32_t max_positions,
                                 block_draft_rows rows) {
  const std::int32_t position = rows.positions[blockIdx.x];
  if (position < 0) return;
  const std::int32_t place = rows.sequences[rows.sequence_of[blockIdx.x]].sequence;
  const NumberT* from = states + static_cast<std::int64_t>(blockIdx.x) * width;
  NumberT* to = kept + (static_cast<std::int64_t>(place) * max_positions + position) * width;
  for (auto k = static_cast<std::int32_t>(threadIdx.x); k < width; k += block_row_threads)
    to[k] = from[k];
}

// One block a lane: the rows of a block after the text, the pending token's first. Beyond the last position there is
// none.
template <class UnusedT = void>
ESPALIER_KERNEL void open_block(block_draft_rows to, text_batch texts, std::int32_t n, std::int32_t max_positions) {
  const text_in_batch here = texts.here();
  const std::int32_t position = here.place < 0 ? -1 : here.text.state->size - 1;
  const bool is_there = position >= 0 && position < max_positions;
  const std::int32_t words = (n + 31) / 32, first = here.lane * n;
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n * words; i += block_row_threads) {
    const std::int32_t rest = n - i % words * 32;
    to.mask[first * words + i] = rest >= 32 ? ~0U : (1U << rest) - 1U;
  }
  for (auto i = static_cast<std::int32_t>(threadIdx.x); i < n; i += block_row_threads) {
    to.positions[first + i] = is_there ? position + i : -1;
    to.sequence_of[first + i] = is_there ? here.lane : -1;
  }
  if (threadIdx.x != 0) return;
  to.sequences[here.lane] = {is_there ? here.place : 0, first,         first + n,
                             is_there ? position : 0,   first * words, words};
  to.pending[here.lane] = is_there ? here.text.tokens[position] : 0;
}

// Block (row, lane): the pending token beside the last state of the context; rows to be written add what tells them
// apart.
//
// Shapes: root [lanes][width]; states [places][max_positions][width]; masked [rows - 1][width]; stream
// [lanes][rows][width]
template <class NumberT>
ESPALIER_KERNEL void begin_block(const float* root, const NumberT* states, const NumberT* masked, float* stream,
                                 std::int32_t width, std::int32_t max_positions, block_draft_rows rows) {
  const auto row = static_cast<std::int32_t>(blockIdx.x), lane = static_cast<std::int32_t>(blockIdx.y);
  const std::int32_t first = lane * static_cast<std::int32_t>(gridDim.x);
  const std::int32_t position = rows.positions[first];
  const std::int64_t before = static_cast<std::int64_t>(rows.sequences[lane].sequence) * max_positions + position - 1;
  const NumberT* state = position > 0 ? states + before * width : nullptr;
  const NumberT* own = row > 0 ? masked + static_cast<std::int64_t>(row - 1) * width : nullptr;
  for (auto k = static_cast<std::int32_t>(threadIdx.x); k < width; k += block_row_threads) {
    float value = root[static_cast<std::int64_t>(lane) * width + k];
    if (state != nullptr) value += static_cast<float>(state[k]);
    if (own != nullptr) value += static_cast<float>(own[k]);
    stream[static_cast<std::int64_t>(first + row) * width + k] = value;
  }
}

}  // namespace espalier::cuda::detail
