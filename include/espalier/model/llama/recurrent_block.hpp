// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/hybrid.cpp
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/core/forward_batch_view.hpp"
#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/host_kv_store.hpp"
#include "espalier/model/llama/recurrent_block_shape.hpp"
#include "espalier/model/llama/recurrent_plan.hpp"
#include "espalier/model/llama/simd.hpp"
#include "espalier/model/llama/thread_team.hpp"

namespace espalier::detail {

// The inputs of one step of the recurrence, for one head, and the place of its output. x, into and reads point into the
// row that the store keeps of the token.
struct recurrent_inputs {
  const float* x;      // [head_dim]
  const float* into;   // [state] B, by which x goes into the state
  const float* reads;  // [state] C, by which the state is read
  float into_scale;    // factor of `into`; 1 in Mamba-2
  float reads_scale;   // factor of `reads`; 1 in Mamba-2
  float step;
  float decay;
  float* y;  // [head_dim] the output; null: only the state is wanted
};

// The recurrence of one head over a tree of tokens: state = decay * state + change (outer) into, y = state * reads. The
// change is step * x or, in a delta network, step * (x - decay * state * into).
//
// A state is computed in tiles of a few channels; all tokens of a tile are computed before the next tile. So the state
// at the beginning is read from memory once, the states of nodes stay in the processor's cache, and one state is
// written. Sums run in the same order whatever the tree is: a token has the numbers that plain decoding gives it.
//
// Complexity  O(steps * head_dim * state) operations; memory traffic of one state in, one out
class recurrent_scan {
 public:
  static constexpr int tile_rows = 4;

  void reserve(int stride, int n_memories) {
    const std::size_t floats = static_cast<std::size_t>(stride * tile_rows) * static_cast<std::size_t>(n_memories + 1);
    if (tiles_.size() < floats) tiles_.resize(floats);
  }

  // Computes all steps of a head. `state` [head_dim][stride] is the state at the beginning, null for zeros. The state
  // after step hold_after is written to `held`, unless that is null.
  void run(const recurrent_block_shape& shape, std::span<const recurrent_step> steps,
           std::span<const recurrent_inputs> inputs, const float* state, float* held, std::int32_t hold_after) {
    const int stride = shape.state_stride();
    const auto tile_size = static_cast<std::ptrdiff_t>(stride) * tile_rows;
    float* const zeros = tiles_.data();  // the first tile stays zero
    float* const tiles = zeros + tile_size;
    for (int first = 0; first < shape.head_dim; first += tile_rows) {
      const int n = (std::min)(tile_rows, shape.head_dim - first);
      const std::ptrdiff_t offset = static_cast<std::ptrdiff_t>(first) * stride;
      const float* const begin = state ? state + offset : zeros;
      for (std::size_t i = 0; i < steps.size(); ++i) {
        const recurrent_step& step = steps[i];
        const float* from = step.from < 0 ? begin : tiles + step.from * tile_size;
        float* const to = tiles + step.to * tile_size;
        if (shape.is_delta()) {
          advance<true>(inputs[i], first, n, shape, from, to);
        } else {
          advance<false>(inputs[i], first, n, shape, from, to);
        }
        if (held && static_cast<std::int32_t>(i) == hold_after) {
          std::copy_n(to, static_cast<std::ptrdiff_t>(n) * stride, held + offset);
        }
      }
    }
  }

 private:
  template <bool DeltaT>
  static void advance(const recurrent_inputs& in, int first, int n, const recurrent_block_shape& shape,
                      const float* from, float* to) {
    const int stride = shape.state_stride();
    if (n == tile_rows) return advance_rows<DeltaT, tile_rows>(in, first, shape.state, stride, from, to);
    for (int row = 0; row < n; ++row)
      advance_rows<DeltaT, 1>(in, first + row, shape.state, stride, from + row * stride, to + row * stride);
  }

  template <bool DeltaT, int RowsT>
  [[gnu::always_inline]] static void advance_rows(const recurrent_inputs& in, int first, int n, int stride,
                                                  const float* from, float* to) {
    simd_float gain[RowsT], sum[RowsT];
    const simd_float decay = simd_broadcast(in.decay);
    for (int row = 0; row < RowsT; ++row) {
      gain[row] = simd_broadcast(in.step * in.x[first + row]);
      sum[row] = simd_float{};
    }
    if constexpr (DeltaT) {
      in_lanes(n, [&](int i, auto many) {
        const simd_float into = simd_load_run(in.into + i, many);
        for (int row = 0; row < RowsT; ++row)
          sum[row] = multiply_add(simd_load(from + row * stride + i) * decay, into, sum[row]);
      });
      for (int row = 0; row < RowsT; ++row) {
        const float change = in.step * (in.x[first + row] - in.into_scale * simd_sum(sum[row]));
        gain[row] = simd_broadcast(change * in.into_scale);
        sum[row] = simd_float{};
      }
    }
    in_lanes(n, [&](int i, auto many) {
      const simd_float into = simd_load_run(in.into + i, many), reads = simd_load_run(in.reads + i, many);
      for (int row = 0; row < RowsT; ++row) {
        // Numbers beyond the end of the state are zero and stay zero.
        const simd_float state = multiply_add(gain[row], into, simd_load(from + row * stride + i) * decay);
        simd_store(to + row * stride + i, state);
        sum[row] = multiply_add(state, reads, sum[row]);
      }
    });
    if (in.y == nullptr) return;
    for (int row = 0; row < RowsT; ++row)
      in.y[first + row] = in.reads_scale * simd_sum(sum[row]);
  }

  std::vector<float> tiles_;  // [1 + n_memories][tile_rows][stride]
};

// The part of a recurrent layer's block between its two projections, for all rows of a pass. Each thread of the team
// calls run().
//
// Source: Dao and Gu, Transformers are SSMs (2024), equation 2; transformers: BambaMixer. Yang, Kautz and Hatamizadeh,
//         Gated delta networks (2024), equation 10; transformers: Qwen3NextGatedDeltaNet
class recurrent_block {
 public:
  recurrent_block() = default;
  recurrent_block(const recurrent_block_shape& shape, int n_threads, float norm_epsilon)
      : shape_(shape), epsilon_(norm_epsilon), workers_(static_cast<std::size_t>(n_threads)) {}

  // Plans a pass for all layers; does nothing in a model without such blocks. Errors: as recurrent_plan::make
  template <HostRecurrentStore StoreT>
  void begin(StoreT& kv, const forward_batch_view& batch) {
    if (shape_.heads == 0) return;
    plan_.make(kv, batch, shape_.taps);
    for (worker& w : workers_) {
      w.inputs.reserve(static_cast<std::size_t>(kv.most_rows()));
      w.scan.reserve(shape_.state_stride(), (std::max)(plan_.n_memories(), kv.most_rows() / 2));
    }
  }
  template <HostRecurrentStore StoreT>
  void end(StoreT& kv) const {
    plan_.finish(kv);
  }

  // Computes out [n_rows][inner()] from projected [n_rows][projected()], for recurrent layer number `layer`.
  template <HostRecurrentStore StoreT>
  void run(thread_team& team, int thread, const recurrent_block_weights& weights, int layer, StoreT& kv,
           const forward_batch_view& batch, const float* projected, float* out) {
    convolve(team, thread, weights, layer, kv, batch, projected);
    team.barrier();
    scan(team, thread, layer, kv, out);
    team.barrier();
    gate(team, thread, weights, layer, kv, batch, projected, out);
  }

 private:
  struct worker {
    recurrent_scan scan;
    std::vector<recurrent_inputs> inputs;
  };

  // A kept row holds channels before the convolution, channels after it, steps, decays.
  float* convolved(float* kept) const { return kept + shape_.convolved(); }
  float* steps(float* kept) const { return kept + 2 * shape_.convolved(); }
  float* decays(float* kept) const { return steps(kept) + shape_.heads; }

  template <class StoreT>
  void convolve(thread_team& team, int thread, const recurrent_block_weights& weights, int layer, StoreT& kv,
                const forward_batch_view& batch, const float* projected) {
    const int channels = shape_.convolved();
    const auto share = team.share(thread, channels, 16);
    const int first = share.first, last = share.second;  // names that lambdas may capture
    const auto [first_head, last_head] = team.share(thread, shape_.heads);
    for (const batch_sequence& s : batch.sequences) {
      for (int row = s.row_begin; row < s.row_end; ++row) {
        const float* from = projected + static_cast<std::ptrdiff_t>(row) * shape_.projected() + shape_.inner();
        float* kept = kv.kept_row(layer, s.sequence, batch.slots[static_cast<std::size_t>(row)]);
        std::copy(from + first, from + last, kept + first);
        for (int head = first_head; head < last_head; ++head) {
          const float* own = from + channels + head;
          const float time = time_step_of(*own + weights.step_bias[head]);
          steps(kept)[head] = shape_.is_delta() ? sigmoid(own[shape_.heads]) : time;
          decays(kept)[head] = std::exp(time * weights.decay[head]);
        }
      }
      for (int row = s.row_begin; row < s.row_end; ++row) {
        const auto taps = plan_.taps_of(row);
        float* to = convolved(kv.kept_row(layer, s.sequence, taps.back()));
        in_lanes(last - first, [&](int i, auto many) {
          const int channel = first + i;
          simd_float sum =
              weights.convolution_bias ? simd_load_run(weights.convolution_bias + channel, many) : simd_float{};
          for (std::size_t tap = 0; tap < taps.size(); ++tap) {
            if (taps[tap] < 0) continue;
            const float* weight = weights.convolution + static_cast<std::ptrdiff_t>(tap) * channels;
            sum = multiply_add(simd_load_run(weight + channel, many),
                               simd_load_run(kv.kept_row(layer, s.sequence, taps[tap]) + channel, many), sum);
          }
          simd_store_run(to + channel, sum / (simd_exp(simd_float{} - sum) + 1.0F), many);
        });
      }
    }
  }

  float time_step_of(float x) const {
    const float softplus = x > 20.0F ? x : std::log1p(std::exp(x));
    return shape_.is_delta() ? softplus : std::clamp(softplus, shape_.least_step, shape_.greatest_step);
  }

  // Returns the factor that brings B or C to length 1 in a delta network; 1 in Mamba-2.
  float unit_scale(const float* x) const {
    constexpr float least_square = 1e-6F;
    return shape_.is_delta() ? 1.0F / std::sqrt(sum_of_squares(x, shape_.state) + least_square) : 1.0F;
  }

  template <class StoreT>
  void scan(thread_team& team, int thread, int layer, StoreT& kv, float* out) {
    worker& w = workers_[static_cast<std::size_t>(thread)];
    const auto [first, last] = team.share(thread, shape_.heads);
    const float read_scale = shape_.is_delta() ? 1.0F / std::sqrt(static_cast<float>(shape_.state)) : 1.0F;
    const std::ptrdiff_t state_floats = static_cast<std::ptrdiff_t>(shape_.head_dim) * shape_.state_stride();
    for (const recurrent_walk& walk : plan_.walks()) {
      const float* state = kv.state(layer, walk.sequence, walk.start);
      float* held = walk.hold > walk.start ? kv.spare_state(layer, walk.sequence, walk.start) : nullptr;
      for (int head = first; head < last; ++head) {
        w.inputs.clear();
        for (const recurrent_step& step : plan_.steps_of(walk)) {
          float* kept = kv.kept_row(layer, walk.sequence, step.slot);
          const float* x = convolved(kept);
          const float* into = x + shape_.inner() + shape_.group_of(head) * shape_.state;
          const float* reads = into + shape_.groups * shape_.state;
          float* y = step.row < 0 ? nullptr : out + static_cast<std::ptrdiff_t>(step.row) * shape_.inner();
          w.inputs.push_back({x + head * shape_.head_dim, into, reads, unit_scale(into), read_scale * unit_scale(reads),
                              steps(kept)[head], decays(kept)[head], y ? y + head * shape_.head_dim : nullptr});
        }
        const std::ptrdiff_t offset = head * state_floats;
        w.scan.run(shape_, plan_.steps_of(walk), w.inputs, state ? state + offset : nullptr,
                   held ? held + offset : nullptr, walk.hold_after);
      }
    }
  }

  // Turns each row y of `out` into (y + skip * x) * SiLU(gates), normalised by groups; in a delta network, into y,
  // normalised by heads, times SiLU(gates).
  template <class StoreT>
  void gate(thread_team& team, int thread, const recurrent_block_weights& weights, int layer, StoreT& kv,
            const forward_batch_view& batch, const float* projected, float* out) {
    const auto [first, last] = team.share(thread, batch.n_rows());
    for (const batch_sequence& s : batch.sequences) {
      for (int row = (std::max)(first, s.row_begin); row < (std::min)(last, s.row_end); ++row) {
        const float* gates = projected + static_cast<std::ptrdiff_t>(row) * shape_.projected();
        float* y = out + static_cast<std::ptrdiff_t>(row) * shape_.inner();
        if (shape_.is_delta()) {
          normalise(weights, y);
          times_silu(y, gates, shape_.inner());
        } else {
          const float* x = convolved(kv.kept_row(layer, s.sequence, batch.slots[static_cast<std::size_t>(row)]));
          for (int head = 0; head < shape_.heads; ++head)
            add_multiple(x + head * shape_.head_dim, shape_.head_dim, weights.skip[head], y + head * shape_.head_dim);
          times_silu(y, gates, shape_.inner());
          normalise(weights, y);
        }
      }
    }
  }

  void normalise(const recurrent_block_weights& weights, float* y) const {
    const int n = shape_.normed_together();
    for (int at = 0; at < shape_.inner(); at += n)
      rms_norm(y + at, n, weights.norm + at % shape_.norm_size(), epsilon_, y + at);
  }

  recurrent_block_shape shape_;
  float epsilon_ = 0.0F;
  recurrent_plan plan_;
  std::vector<worker> workers_;
};

}  // namespace espalier::detail
