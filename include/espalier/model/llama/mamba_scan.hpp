// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "espalier/model/llama/elementwise.hpp"
#include "espalier/model/llama/mamba_shape.hpp"
#include "espalier/model/llama/recurrent_plan.hpp"
#include "espalier/model/llama/simd.hpp"

namespace espalier::detail {

// What one step of the recurrence takes, of one head: the row that is kept of its token.
struct mamba_inputs {
  const float* x;      // [head_dim]
  const float* into;   // [state] what goes into states, B
  const float* reads;  // [state] what reads them, C
  float step;          // of time
  float decay;         // e^(step * A)
  float* y;            // [head_dim]; null: only the state is wanted
};

// The recurrence of one head over a tree of tokens: state = decay * state + step * x (outer) into, y = state * reads.
//
// A state is gone through in tiles of few channels, each with all tokens before the next: so the state that the walk
// begins at is read once, whatever it branches into, the states of nodes never leave the cache, and one is written.
// The sums run in the same order whatever the tree: a token's numbers are those of plain decoding.
//
// Complexity  O(steps * head_dim * state) operations; memory traffic of one state in, one out
class mamba_scan {
 public:
  static constexpr int tile_rows = 4;

  void reserve(int stride, int n_memories) {
    const std::size_t floats = static_cast<std::size_t>(stride * tile_rows) * static_cast<std::size_t>(n_memories + 1);
    if (tiles_.size() < floats) tiles_.resize(floats);
  }

  // state: [head_dim][stride] at the beginning, null for zeros; held: where the state after step hold_after is written,
  // or null.
  void run(const mamba_shape& shape, std::span<const recurrent_step> steps, std::span<const mamba_inputs> inputs,
           const float* state, float* held, std::int32_t hold_after) {
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
        if (n == tile_rows) {
          advance<tile_rows>(inputs[i], first, shape.state, stride, from, to);
        } else {
          for (int row = 0; row < n; ++row)
            advance<1>(inputs[i], first + row, shape.state, stride, from + row * stride, to + row * stride);
        }
        if (held && static_cast<std::int32_t>(i) == hold_after) {
          std::copy_n(to, static_cast<std::ptrdiff_t>(n) * stride, held + offset);
        }
      }
    }
  }

 private:
  template <int RowsT>
  [[gnu::always_inline]] static void advance(const mamba_inputs& in, int first, int n, int stride, const float* from,
                                             float* to) {
    simd_float gain[RowsT], sum[RowsT];
    const simd_float decay = simd_broadcast(in.decay);
    for (int row = 0; row < RowsT; ++row) {
      gain[row] = simd_broadcast(in.step * in.x[first + row]);
      sum[row] = simd_float{};
    }
    in_lanes(n, [&](int i, auto many) {
      const simd_float into = simd_load_run(in.into + i, many), reads = simd_load_run(in.reads + i, many);
      for (int row = 0; row < RowsT; ++row) {
        // Beyond the state's end all is zero, and stays so.
        const simd_float state = multiply_add(gain[row], into, simd_load(from + row * stride + i) * decay);
        simd_store(to + row * stride + i, state);
        sum[row] = multiply_add(state, reads, sum[row]);
      }
    });
    if (in.y == nullptr) return;
    for (int row = 0; row < RowsT; ++row)
      in.y[first + row] = simd_sum(sum[row]);
  }

  std::vector<float> tiles_;  // [1 + n_memories][tile_rows][stride]
};

}  // namespace espalier::detail
