// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/weight_matrix.cpp
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "espalier/model/llama/simd.hpp"

namespace espalier::detail {

// The products of some rows with a panel of floats, weights [inputs][stride], whose first `width` columns are outputs.
// Every element is one chain of multiply-adds over the inputs in ascending order, whatever the number of rows. The
// chain begins with 0 or, if the inputs come in parts, with the sum of the earlier parts, which is in y.
struct float_panel {
  static constexpr int width = 2 * simd_lanes;

  const float* weights;
  std::ptrdiff_t stride;  // from input to input
  int inputs;
  int outputs;  // outputs of the matrix in this panel: width, or fewer in its last panel
  int rows;
  const float* x;
  std::ptrdiff_t x_stride;
  float* y;
  std::ptrdiff_t y_stride;
  bool accumulate;              // adds the end of the chain to the number in y
  bool continues = false;       // begins the chain with the number in y; y is a whole panel then
  const char* ahead = nullptr;  // memory to fetch meanwhile, as many bytes as the panel has; null for none

  void multiply() const {
    const int n_tiles = (rows + max_tile_rows - 1) / max_tile_rows;
    // The tiles of a panel share the work of fetching `ahead`.
    const int ahead_step = ahead ? static_cast<int>(width * sizeof(float)) / n_tiles : 0;
    const char* fetched = ahead ? ahead : reinterpret_cast<const char*>(weights);
    for (int tile = 0, row = 0; tile < n_tiles; ++tile) {
      const int tile_rows = (rows - row) / (n_tiles - tile);
      kernels[static_cast<std::size_t>(tile_rows)](
          *this, {row, fetched + static_cast<std::ptrdiff_t>(tile) * inputs * ahead_step, ahead_step});
      row += tile_rows;
    }
  }

  // Least number of rows for which software fetches the weights ahead. With fewer rows the hardware's own prefetch is
  // better.
  static constexpr int prefetch_rows = 3;

 private:
  // Most rows of a tile: their sums leave registers for a panel's two vectors and a broadcast number.
  static constexpr int max_tile_rows = (simd_registers - 4) / 2 > 12 ? 12 : (simd_registers - 4) / 2;

  struct tile_type {
    int row;
    const char* ahead;
    int ahead_step;
  };
  using kernel = void (*)(const float_panel&, const tile_type&);
  using kernel_table = std::array<kernel, static_cast<std::size_t>(max_tile_rows) + 1>;

  template <int RowsT>
  static void multiply_tile(const float_panel& p, const tile_type& tile) {
    simd_float sum[RowsT][2];
#pragma GCC unroll 16
    for (int r = 0; r < RowsT; ++r) {
      const float* y = p.y + (tile.row + r) * p.y_stride;
      sum[r][0] = p.continues ? simd_load(y) : simd_float{};
      sum[r][1] = p.continues ? simd_load(y + simd_lanes) : simd_float{};
    }
    const float* weights = p.weights;
    const float* x = p.x + tile.row * p.x_stride;
    const char* ahead = tile.ahead;
    for (int i = 0; i < p.inputs; ++i, weights += p.stride) {
      if constexpr (RowsT >= prefetch_rows) {
        __builtin_prefetch(ahead, 0, 2);
        if constexpr (width * sizeof(float) > 64) __builtin_prefetch(ahead + tile.ahead_step / 2, 0, 2);
        ahead += tile.ahead_step;
      }
      const simd_float low = simd_load(weights);
      const simd_float high = simd_load(weights + simd_lanes);
#pragma GCC unroll 16
      for (int r = 0; r < RowsT; ++r) {
        const simd_float value = simd_broadcast(x[r * p.x_stride + i]);
        sum[r][0] = multiply_add(value, low, sum[r][0]);
        sum[r][1] = multiply_add(value, high, sum[r][1]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < RowsT; ++r)
      finish_row(p, tile.row + r, sum[r][0], sum[r][1]);
  }

  [[gnu::always_inline]] static void finish_row(const float_panel& p, int row, simd_float low, simd_float high) {
    float* y = p.y + row * p.y_stride;
    if (p.outputs == width) [[likely]] {
      simd_store(y, p.accumulate ? simd_load(y) + low : low);
      simd_store(y + simd_lanes, p.accumulate ? simd_load(y + simd_lanes) + high : high);
      return;
    }
    float whole[width];
    simd_store(whole, low);
    simd_store(whole + simd_lanes, high);
    for (int o = 0; o < p.outputs; ++o)
      y[o] = p.accumulate ? y[o] + whole[o] : whole[o];
  }

  template <std::size_t... RowsT>
  static constexpr kernel_table make_kernels(std::index_sequence<RowsT...>) {
    return {nullptr, &multiply_tile<static_cast<int>(RowsT) + 1>...};
  }
  static const kernel_table kernels;
};

inline constexpr float_panel::kernel_table float_panel::kernels =
    make_kernels(std::make_index_sequence<static_cast<std::size_t>(max_tile_rows)>{});

}  // namespace espalier::detail
