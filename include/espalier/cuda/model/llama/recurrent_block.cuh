// SPDX-License-Identifier: BSL-1.0
// Tested by tests/cuda/model/llama/hybrid.cu
#pragma once

#include <cuda_runtime.h>

#include <cmath>
#include <cstdint>

#include "espalier/config.hpp"
#include "espalier/core/error.hpp"
#include "espalier/core/forward_batch_view.hpp"
#include "espalier/cuda/core/forward_batch.cuh"
#include "espalier/cuda/core/launch.cuh"
#include "espalier/cuda/core/shared_memory.cuh"
#include "espalier/cuda/kv_store/kv_view.cuh"
#include "espalier/cuda/kv_store/recurrent_view.cuh"
#include "espalier/cuda/model/llama/activate.cuh"
#include "espalier/cuda/model/llama/normalise.cuh"
#include "espalier/cuda/model/llama/number.cuh"
#include "espalier/model/llama/recurrent_block_shape.hpp"

namespace espalier::cuda::detail {

// The arguments of the kernels of one recurrent layer's block, which computes what is between its two projections. Of a
// slot the layer keeps two rows in states.rows. The first, its key, has the channels before the convolution and each
// head's step; the second, its value, has the channels after the convolution and each head's decay.
//
// Shapes: projected [rows][shape.projected()]; bias [shape.projected()] or null; read [rows][shape.inner()]; out
// [rows][shape.inner()]
template <class NumberT>
struct recurrent_job {
  recurrent_block_shape shape{};
  recurrent_block_weights weights{};
  recurrent_view states{};
  const NumberT* projected = nullptr;
  const float* bias = nullptr;
  float* read = nullptr;  // what the rows read from their states
  NumberT* out = nullptr;
  std::int32_t layer = 0;  // number of the layer among the recurrent ones
  float epsilon = 0.0F;

  // Returns output i of the first projection in a row, with its bias.
  __device__ float output(std::int32_t row, std::int32_t i) const {
    const float x = static_cast<float>(projected[static_cast<std::int64_t>(row) * shape.projected() + i]);
    return bias != nullptr ? x + bias[i] : x;
  }
  __device__ float* before(std::int32_t sequence, std::int32_t slot) const {
    return states.rows.key(layer, sequence, slot);
  }
  __device__ float* after(std::int32_t sequence, std::int32_t slot) const {
    return states.rows.value(layer, sequence, slot);
  }
};

// The tokens that a row of a sequence sees: the committed ones, and the slots after them whose bits are set in its
// mask.
struct row_path {
  const std::uint32_t* mask;
  std::int32_t prefix;

  __device__ row_path(const forward_batch_view& batch, const batch_sequence& s, std::int32_t row)
      : mask(batch.mask + s.mask_begin + static_cast<std::int64_t>(row - s.row_begin) * s.mask_words),
        prefix(s.prefix) {}

  // Returns the first slot from `slot` on, but before `end`, that the row sees; `end` if there is none. Pre: prefix <=
  // slot
  __device__ std::int32_t next(std::int32_t slot, std::int32_t end) const {
    while (slot < end) {
      const std::int32_t column = slot - prefix;
      const std::uint32_t left = mask[column / 32] >> (column % 32);
      if (left != 0) {
        const std::int32_t found = slot + __ffs(static_cast<int>(left)) - 1;
        return found < end ? found : end;
      }
      slot += 32 - column % 32;
    }
    return end;
  }

  // Returns the slot before `slot` on the row's path; -1 if there is none.
  __device__ std::int32_t previous(std::int32_t slot) const {
    while (slot > prefix) {
      const std::int32_t last = slot - 1 - prefix;
      const std::uint32_t seen = mask[last / 32] << (31 - last % 32);
      if (seen != 0) return slot - 1 - __clz(static_cast<int>(seen));
      slot -= last % 32 + 1;
    }
    return slot - 1;
  }
};

inline constexpr int recurrent_threads = 256;

// Keeps the channels of each row before the convolution, and the heads' steps and decays.
//
// Shapes: grid: rows, blocks of numbers
template <class NumberT>
ESPALIER_KERNEL void keep_channels(recurrent_job<NumberT> job, forward_batch_view batch) {
  const recurrent_block_shape& shape = job.shape;
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  const auto i = static_cast<std::int32_t>(blockIdx.y * recurrent_threads + threadIdx.x);
  const std::int32_t of = batch.sequence_of[row], slot = batch.slots[row], channels = shape.convolved();
  if (of < 0 || slot < 0 || i >= channels + shape.heads) return;
  const std::int32_t sequence = batch.sequences[of].sequence;
  const float x = job.output(row, shape.inner() + i);
  if (i < channels) {
    job.before(sequence, slot)[i] = x;
    return;
  }
  const std::int32_t head = i - channels;
  const float wanted = x + job.weights.step_bias[head];
  const float softplus = wanted > 20.0F ? wanted : log1pf(expf(wanted));
  const float time = shape.is_delta() ? softplus : fminf(fmaxf(softplus, shape.least_step), shape.greatest_step);
  job.before(sequence, slot)[i] = shape.is_delta() ? sigmoid(job.output(row, shape.inner() + i + shape.heads)) : time;
  job.after(sequence, slot)[i] = expf(time * job.weights.decay[head]);
}

// Convolves the channels of each row with those of the tokens before it on its path.
//
// Shapes: grid: rows, blocks of channels
template <class NumberT>
ESPALIER_KERNEL void convolve_channels(recurrent_job<NumberT> job, forward_batch_view batch) {
  const auto row = static_cast<std::int32_t>(blockIdx.x);
  const auto channel = static_cast<std::int32_t>(blockIdx.y * recurrent_threads + threadIdx.x);
  const std::int32_t of = batch.sequence_of[row], own = batch.slots[row], channels = job.shape.convolved();
  if (of < 0 || own < 0 || channel >= channels) return;
  const batch_sequence s = batch.sequences[of];
  const row_path path(batch, s, row);
  float sum = job.weights.convolution_bias != nullptr ? job.weights.convolution_bias[channel] : 0.0F;
  std::int32_t slot = own;
  for (std::int32_t tap = job.shape.taps - 1; tap >= 0 && slot >= 0; --tap) {
    sum = fmaf(job.weights.convolution[tap * channels + channel], job.before(s.sequence, slot)[channel], sum);
    slot = path.previous(slot);
  }
  job.after(s.sequence, own)[channel] = silu(sum);
}

inline constexpr int recurrent_warps = 4;

// Scales each group's B and C of a delta network to length 1, and C also by the root of its size. A warp works on the B
// or the C of one group of a row.
//
// Shapes: grid: rows, blocks of B and C
template <class NumberT>
ESPALIER_KERNEL void scale_channels(recurrent_job<NumberT> job, forward_batch_view batch) {
  const recurrent_block_shape& shape = job.shape;
  const auto row = static_cast<std::int32_t>(blockIdx.x), lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const auto which = static_cast<std::int32_t>(blockIdx.y * recurrent_warps + threadIdx.x / 32);
  const std::int32_t of = batch.sequence_of[row], slot = batch.slots[row];
  if (of < 0 || slot < 0 || which >= 2 * shape.groups) return;
  float* const x = job.after(batch.sequences[of].sequence, slot) + shape.inner() + which * shape.state;
  constexpr float least_square = 1e-6F;
  float squares = 0.0F;
  for (std::int32_t i = lane; i < shape.state; i += 32)
    squares += x[i] * x[i];
  const float length = sqrtf(sum_of_lanes(squares) + least_square);
  const float scale = which < shape.groups ? 1.0F / length : 1.0F / (length * sqrtf(static_cast<float>(shape.state)));
  for (std::int32_t i = lane; i < shape.state; i += 32)
    x[i] *= scale;
}

// Channels of a head whose states one warp computes.
inline constexpr int scan_channels = 2;

// The states of a few channels of one head, in the registers of a warp: lane l has numbers l, l + 32, ... of each.
template <int NumbersT>
struct channel_states {
  float at[scan_channels][NumbersT];
};

// The recurrence of a few channels of one head over the tokens of a sequence. Each token's state is computed from the
// state before it by the same operations, whatever pass the token is in, so it has the same bits in all of them.
template <class NumberT, int NumbersT, bool DeltaT>
struct channel_scan {
  const recurrent_job<NumberT>& job;
  std::int32_t sequence;
  std::int32_t head;
  std::int32_t first;  // first channel, of the head
  std::int32_t n;      // number of channels, at most scan_channels
  channel_states<NumbersT> now;

  // Brings the states `now` on by the token in this slot. Writes what the token reads from them to `read`, one number a
  // channel, unless that is null.
  __device__ void advance(std::int32_t slot, float* read) {
    const recurrent_block_shape& shape = job.shape;
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    const float* const row = job.after(sequence, slot);
    const float* const into = row + shape.inner() + shape.group_of(head) * shape.state;
    const float* const reads = into + shape.groups * shape.state;
    const float step = job.before(sequence, slot)[shape.convolved() + head], decay = row[shape.convolved() + head];
    float b[NumbersT], gain[scan_channels];
    ESPALIER_UNROLL
    for (int k = 0; k < NumbersT; ++k)
      b[k] = lane + 32 * k < shape.state ? into[lane + 32 * k] : 0.0F;
    ESPALIER_UNROLL
    for (int c = 0; c < scan_channels; ++c) {
      const float x = c < n ? row[head * shape.head_dim + first + c] : 0.0F;
      float held = 0.0F;
      ESPALIER_UNROLL
      for (int k = 0; k < NumbersT; ++k) {
        now.at[c][k] *= decay;
        held = fmaf(now.at[c][k], b[k], held);
      }
      gain[c] = step * (DeltaT ? x - sum_of_lanes(held) : x);
    }
    ESPALIER_UNROLL
    for (int c = 0; c < scan_channels; ++c) {
      ESPALIER_UNROLL
      for (int k = 0; k < NumbersT; ++k)
        now.at[c][k] = fmaf(gain[c], b[k], now.at[c][k]);
    }
    if (read == nullptr) return;
    ESPALIER_UNROLL
    for (int c = 0; c < scan_channels; ++c) {
      float sum = 0.0F;
      ESPALIER_UNROLL
      for (int k = 0; k < NumbersT; ++k)
        sum = fmaf(now.at[c][k], lane + 32 * k < shape.state ? reads[lane + 32 * k] : 0.0F, sum);
      sum = sum_of_lanes(sum);
      if (lane == 0 && c < n) read[c] = sum;
    }
  }

  // Reads the states from `state` [channels][stride], or writes them to it.
  __device__ void load(const float* state) {
    each([&](int c, int k, std::int32_t i) { now.at[c][k] = c < n ? state[c * stride() + i] : 0.0F; });
  }
  __device__ void store(float* state) const {
    each([&](int c, int k, std::int32_t i) {
      if (c < n) state[c * stride() + i] = now.at[c][k];
    });
  }

 private:
  __device__ std::int32_t stride() const { return job.shape.state_stride(); }

  template <class VisitT>
  __device__ void each(const VisitT& visit) const {
    const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
    ESPALIER_UNROLL
    for (int c = 0; c < scan_channels; ++c) {
      ESPALIER_UNROLL
      for (int k = 0; k < NumbersT; ++k) {
        if (lane + 32 * k < job.shape.state) visit(c, k, lane + 32 * k);
      }
    }
  }
};

// Returns whether the row after `row` in its sequence goes on where `row` ends: it sees `row` and what `row` sees, and
// nothing else. Called by a whole warp.
__device__ inline bool goes_on(const forward_batch_view& batch, const batch_sequence& s, std::int32_t row) {
  const row_path path(batch, s, row), next(batch, s, row + 1);
  const std::int32_t own = batch.slots[row] - s.prefix, column = batch.slots[row + 1] - s.prefix;
  bool same = own < column;
  for (auto word = static_cast<std::int32_t>(threadIdx.x % 32); word < s.mask_words; word += 32) {
    const auto bit = [&](std::int32_t of) { return of / 32 == word ? 1U << (of % 32) : 0U; };
    same = same && (path.mask[word] | bit(own) | bit(column)) == (next.mask[word] | bit(column));
  }
  return __all_sync(0xFFFFFFFFU, same ? 1 : 0) != 0;
}

// Returns to all lanes of a warp the highest slot of a sequence's rows; -1 if they have none.
__device__ inline std::int32_t highest_slot(const forward_batch_view& batch, const batch_sequence& s) {
  std::int32_t highest = -1;
  for (std::int32_t row = s.row_begin + static_cast<std::int32_t>(threadIdx.x % 32); row < s.row_end; row += 32)
    highest = batch.slots[row] > highest ? batch.slots[row] : highest;
  for (int other = 16; other > 0; other /= 2) {
    const std::int32_t from = __shfl_xor_sync(0xFFFFFFFFU, highest, other);
    highest = from > highest ? from : highest;
  }
  return highest;
}

// Number of slots that the state of a sequence has seen if its rows are lost.
inline constexpr std::int32_t rows_lost = std::int32_t{1} << 30;

// Returns the number of slots that the state has seen at which a pass over a sequence begins; rows_lost if it has seen
// more than the committed tokens, if rows that are needed after it are overwritten, or if that was so in an earlier
// pass and the sequence has not begun anew. Called by a whole warp.
template <class NumberT>
__device__ std::int32_t begin_of(const recurrent_job<NumberT>& job, const forward_batch_view& batch,
                                 const batch_sequence& s) {
  const std::int32_t begin = s.prefix == 0 ? 0 : job.states.seen[job.states.at(job.layer, s.sequence)];
  const bool has_rows = highest_slot(batch, s) - begin + job.shape.taps <= job.states.n_slots;
  return begin <= s.prefix && has_rows ? begin : rows_lost;
}

// Computes what each row reads from its state, and brings the store's state up to the committed tokens. A warp computes
// a few channels of a head, for all rows of a sequence in turn: the state after the committed tokens, and from it the
// states along the path of each row. If a row goes on where the row before it ends, its path is not computed again.
//
// Rows are NaN if the sequence's rows are lost, or if they have no slot.
//
// Shapes: grid: blocks of channels, sequences
template <class NumberT, int NumbersT, bool DeltaT>
ESPALIER_KERNEL void scan_rows(recurrent_job<NumberT> job, forward_batch_view batch) {
  const recurrent_block_shape& shape = job.shape;
  const batch_sequence s = batch.sequences[blockIdx.y];
  const auto part = static_cast<std::int32_t>(blockIdx.x * recurrent_warps + threadIdx.x / 32);
  const std::int32_t parts = (shape.head_dim + scan_channels - 1) / scan_channels, head = part / parts;
  if (s.row_begin >= s.row_end || head >= shape.heads) return;
  const auto lane = static_cast<std::int32_t>(threadIdx.x % 32);
  const std::int32_t first = part % parts * scan_channels, left = shape.head_dim - first;
  const std::int32_t n = left < scan_channels ? left : scan_channels, channel = head * shape.head_dim + first;
  const auto read_of = [&](std::int32_t row) {
    return job.read + static_cast<std::int64_t>(row) * shape.inner() + channel;
  };

  const std::int32_t begin = begin_of(job, batch, s);
  if (begin == rows_lost) {
    for (std::int32_t row = s.row_begin; row < s.row_end; ++row) {
      if (lane < n) read_of(row)[lane] = NAN;
    }
    return;
  }
  float* const held =
      job.states.state(job.layer, s.sequence) + static_cast<std::int64_t>(channel) * shape.state_stride();
  channel_scan<NumberT, NumbersT, DeltaT> scan{job, s.sequence, head, first, n, {}};
  if (begin > 0) scan.load(held);
  for (std::int32_t slot = begin; slot < s.prefix; ++slot)
    scan.advance(slot, nullptr);
  if (begin < s.prefix) scan.store(held);

  const channel_states<NumbersT> committed = scan.now;
  for (std::int32_t row = s.row_begin; row < s.row_end; ++row) {
    const std::int32_t own = batch.slots[row];
    if (own < 0) {
      if (lane < n) read_of(row)[lane] = NAN;
      continue;
    }
    if (row == s.row_begin || batch.slots[row - 1] < 0 || !goes_on(batch, s, row - 1)) {
      scan.now = committed;
      const row_path path(batch, s, row);
      for (std::int32_t slot = path.next(s.prefix, own); slot < own; slot = path.next(slot + 1, own))
        scan.advance(slot, nullptr);
    }
    scan.advance(own, read_of(row));
  }
}

// Turns what a row has read, y, into (y + skip * x) * SiLU(gates), normalised by groups; in a delta network, into y,
// normalised by heads, times SiLU(gates). A block works on the channels of a row that are normalised together. Notes
// that the layer's states have seen the committed tokens, or that their rows are lost.
//
// Shapes: grid: rows, parts that are normalised together
template <class NumberT>
ESPALIER_KERNEL void gate_rows(recurrent_job<NumberT> job, forward_batch_view batch) {
  const recurrent_block_shape& shape = job.shape;
  auto& memory = *reinterpret_cast<normalise_memory*>(shared_memory());
  const auto row = static_cast<std::int32_t>(blockIdx.x), thread = static_cast<std::int32_t>(threadIdx.x);
  const std::int32_t width = shape.normed_together(), begin = static_cast<std::int32_t>(blockIdx.y) * width;
  const std::int32_t of = batch.sequence_of[row], slot = batch.slots[row];
  if (of < 0) return;
  const batch_sequence s = batch.sequences[of];
  // Rows of padding may stand among a sequence's rows, so several rows may do this.
  if ((row == s.row_begin || batch.sequence_of[row - 1] < 0) && blockIdx.y == 0 && thread < 32) {
    const bool lost = begin_of(job, batch, s) == rows_lost;
    if (thread == 0) job.states.seen[job.states.at(job.layer, s.sequence)] = lost ? rows_lost : s.prefix;
  }
  const std::int64_t at = static_cast<std::int64_t>(row) * shape.inner();
  const float* const x = slot < 0 || shape.is_delta() ? nullptr : job.after(s.sequence, slot);
  const auto value = [&](std::int32_t i) {
    const float y = job.read[at + i];
    if (shape.is_delta()) return y;
    const float skipped = x != nullptr ? job.weights.skip[i / shape.head_dim] * x[i] : 0.0F;
    return (y + skipped) * silu(job.output(row, i));
  };
  float squares = 0.0F;
  for (std::int32_t i = begin + thread; i < begin + width; i += normalise_threads)
    squares += value(i) * value(i);
  const float factor = 1.0F / sqrtf(block_sum(memory, squares) / static_cast<float>(width) + job.epsilon);
  for (std::int32_t i = begin + thread; i < begin + width; i += normalise_threads) {
    const float normal = value(i) * factor * job.weights.norm[i % shape.norm_size()];
    job.out[at + i] = NumberT(shape.is_delta() ? normal * silu(job.output(row, i)) : normal);
  }
}

// Launches the kernels above for all rows of a batch.
//
// Complexity: 4 launches, 5 for a delta network; shape.inner() * shape.state operations for each token that is
// computed: the rows, the committed tokens that the state has not seen, and, of each row that does not go on where the
// row before it ends, the scratch tokens before it on its path
template <class NumberT>
class recurrent_launcher {
 public:
  const recurrent_job<NumberT>& job;
  const forward_batch_view& batch;
  cudaStream_t stream;

  void run() const {
    const recurrent_block_shape& shape = job.shape;
    launch("keep_channels", keep_channels<NumberT>, over_rows(shape.convolved() + shape.heads, recurrent_threads),
           stream, job, batch);
    launch("convolve_channels", convolve_channels<NumberT>, over_rows(shape.convolved(), recurrent_threads), stream,
           job, batch);
    if (shape.is_delta()) {
      launch("scale_channels", scale_channels<NumberT>,
             {.grid = over_rows(2 * shape.groups, recurrent_warps).grid, .threads = 32 * recurrent_warps}, stream, job,
             batch);
      scan<true>();
    } else {
      scan<false>();
    }
    launch("gate_rows", gate_rows<NumberT>,
           {.grid = dim3(rows(), static_cast<unsigned>(shape.inner() / shape.normed_together())),
            .threads = normalise_threads,
            .shared_bytes = sizeof(normalise_memory)},
           stream, job, batch);
  }

 private:
  unsigned rows() const { return static_cast<unsigned>(batch.n_rows); }
  static unsigned blocks_for(std::int32_t items, std::int32_t per_block) {
    return static_cast<unsigned>((items + per_block - 1) / per_block);
  }
  launch_shape over_rows(std::int32_t items, std::int32_t per_block) const {
    return {.grid = dim3(rows(), blocks_for(items, per_block)), .threads = recurrent_threads};
  }

  template <bool DeltaT>
  void scan() const {
    if (job.shape.state <= 32) return scan_in<1, DeltaT>();
    if (job.shape.state <= 64) return scan_in<2, DeltaT>();
    if (job.shape.state <= 128) return scan_in<4, DeltaT>();
    scan_in<8, DeltaT>();  // 256 numbers: model_weights has refused longer states
  }
  template <int NumbersT, bool DeltaT>
  void scan_in() const {
    const std::int32_t parts = (job.shape.head_dim + scan_channels - 1) / scan_channels;
    launch(
        "scan_rows", scan_rows<NumberT, NumbersT, DeltaT>,
        {.grid = dim3(blocks_for(job.shape.heads * parts, recurrent_warps), static_cast<unsigned>(batch.n_sequences)),
         .threads = 32 * recurrent_warps},
        stream, job, batch);
  }
};

}  // namespace espalier::cuda::detail
