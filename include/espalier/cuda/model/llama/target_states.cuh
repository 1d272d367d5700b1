// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/drafter/block_diffusion.cu
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/cuda/concepts/state_rows.cuh"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/model/llama/normalise.cuh"

namespace espalier::cuda::detail {

inline constexpr int max_read_layers = 64;

// Checks that a target keeps the states of all layers that a draft reads. `kept` is the target's option hidden_layers,
// `draft` names the draft in messages.
//
// Errors      option_error that names the layers that it must list
inline void require_kept_layers(const char* draft, const std::vector<int>& read, const std::vector<int>& kept) {
  for (const int layer : read) {
    if (std::find(kept.begin(), kept.end(), layer) != kept.end()) continue;
    std::string all;
    for (const int l : read)
      all += (all.empty() ? "" : ", ") + std::to_string(l);
    raise<option_error>("option hidden_layers of the target does not list layer ", layer, ", which the ", draft,
                        " reads; it must list ", all, ".");
  }
}

// The places and positions of the states that gather_states has gathered: arrays of a forward_batch_view with a
// sequence for each lane, whose number is the place of its text. All lanes have the same number of rows.
//
// Shapes: positions, which are the slots too, and sequence_of [rows]; sequences [lanes]
struct state_places {
  std::int32_t* positions;
  std::int32_t* sequence_of;
  batch_sequence* sequences;

  forward_batch_view view(std::int32_t n_lanes, std::int32_t n, std::int32_t max_context) const {
    forward_batch_view batch;
    batch.n_rows = n_lanes * n;
    batch.n_sequences = n_lanes;
    batch.max_context = max_context;
    batch.positions = batch.slots = positions;
    batch.sequence_of = sequence_of;
    batch.sequences = sequences;
    return batch;
  }
};

// The arguments of gather_states(), which puts the target's hidden states of some rows side by side, layer by layer,
// and normalises them if `scale` is given: each state by itself, or all states of a row together.
//
// Shapes: hidden[l] [rows of the target][width]; scale [layers][width]; features [rows][layers][width]
template <class NumberT>
struct gather_job {
  const float* hidden[max_read_layers];
  std::int32_t n_layers;
  std::int32_t width;
  std::int32_t max_positions;
  NumberT* features;
  const float* scale;  // of an RMSNorm; null: the states are taken as they are
  bool together;
  float epsilon;

  // Returns the job of these layers of a backend, without a norm.
  template <class BackendT>
  static gather_job of(const BackendT& backend, std::span<const int> layers, int width, int max_positions,
                       NumberT* features) {
    gather_job job{};
    for (const int layer : layers)
      job.hidden[job.n_layers++] = backend.hidden(layer);
    job.width = width;
    job.max_positions = max_positions;
    job.features = features;
    return job;
  }
};

// The kernel of gather_states(): block (i, lane) gathers row i of a lane. Rows that `from` does not have, or that lie
// beyond the last position, become padding.
template <class NumberT>
ESPALIER_KERNEL void gather_rows(gather_job<NumberT> job, state_rows from, state_places to) {
  auto& memory = *reinterpret_cast<normalise_memory*>(shared_memory());
  const auto lane = static_cast<std::int32_t>(blockIdx.y), n = static_cast<std::int32_t>(gridDim.x);
  const auto thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t i = lane * n + static_cast<std::int32_t>(blockIdx.x);
  const state_rows::entry entry = from.at(lane, static_cast<std::int32_t>(blockIdx.x));
  const bool is_there = entry.place >= 0 && entry.position < job.max_positions;
  if (thread == 0) {
    to.positions[i] = is_there ? entry.position : -1;
    to.sequence_of[i] = is_there ? lane : -1;
    if (blockIdx.x == 0) to.sequences[lane] = {entry.place, lane * n, (lane + 1) * n, 0, 0, 0};
  }
  const std::int64_t row = is_there ? entry.row : 0;
  const auto state_of = [&](std::int32_t layer) { return job.hidden[layer] + row * job.width; };
  const auto squares_of = [&](std::int32_t layer) {
    float squares = 0.0F;
    for (std::int32_t k = thread; k < job.width; k += normalise_threads)
      squares += state_of(layer)[k] * state_of(layer)[k];
    return squares;
  };
  const auto factor_of = [&](float squares, std::int32_t numbers) {
    return 1.0F / sqrtf(block_sum(memory, squares) / static_cast<float>(numbers) + job.epsilon);
  };
  float factor = 1.0F;
  if (job.scale != nullptr && job.together) {
    float squares = 0.0F;
    for (std::int32_t layer = 0; layer < job.n_layers; ++layer)
      squares += squares_of(layer);
    factor = factor_of(squares, job.n_layers * job.width);
  }
  NumberT* features = job.features + static_cast<std::int64_t>(i) * job.n_layers * job.width;
  for (std::int32_t layer = 0; layer < job.n_layers; ++layer) {
    const float* state = state_of(layer);
    if (job.scale != nullptr && !job.together) factor = factor_of(squares_of(layer), job.width);
    for (std::int32_t k = thread; k < job.width; k += normalise_threads) {
      const float scale = job.scale != nullptr ? factor * job.scale[layer * job.width + k] : 1.0F;
      features[layer * job.width + k] = is_there ? NumberT(state[k] * scale) : NumberT(0.0F);
    }
  }
}

template <class NumberT>
void gather_states(const gather_job<NumberT>& job, const state_rows& from, const state_places& to,
                   cudaStream_t stream) {
  launch("gather_rows", gather_rows<NumberT>,
         {.grid = dim3(static_cast<unsigned>(from.max), static_cast<unsigned>(from.n_lanes())),
          .threads = normalise_threads,
          .shared_bytes = sizeof(normalise_memory)},
         stream, job, from, to);
}

inline constexpr int keep_threads = 128;

// The kernel of keep_states(): one thread block works on one row.
template <class NumberT>
ESPALIER_KERNEL void keep_rows(const NumberT* states, NumberT* kept, std::int32_t width, std::int32_t max_positions,
                               state_places rows) {
  const std::int32_t position = rows.positions[blockIdx.x];
  if (position < 0) return;
  const std::int32_t place = rows.sequences[rows.sequence_of[blockIdx.x]].sequence;
  const NumberT* from = states + static_cast<std::int64_t>(blockIdx.x) * width;
  NumberT* to = kept + (static_cast<std::int64_t>(place) * max_positions + position) * width;
  for (auto k = static_cast<std::int32_t>(threadIdx.x); k < width; k += keep_threads)
    to[k] = from[k];
}

// Copies the state of each of n rows to the place of its text and its position in `kept`.
//
// Shapes: states [n][width]; kept [places][max_positions][width]
template <class NumberT>
void keep_states(const NumberT* states, NumberT* kept, int width, int max_positions, const state_places& rows, int n,
                 cudaStream_t stream) {
  launch("keep_rows", keep_rows<NumberT>, {.grid = static_cast<unsigned>(n), .threads = keep_threads}, stream, states,
         kept, width, max_positions, rows);
}

}  // namespace espalier::cuda::detail
