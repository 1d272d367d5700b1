// SPDX-License-Identifier: BSL-1.0
#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "espalier/model/llama/matrix_product.hpp"
#include "espalier/model/llama/simd.hpp"

namespace espalier {

//! A weight matrix in panels of two vectors' worth of outputs, [outputs / granule][inputs][granule], so that a product
//! with a few rows streams through memory once, and each weight loaded serves all rows.
//!
//! Every element of a product is one chain of multiply-adds over the inputs in ascending order, whatever the number of
//! rows: the law of MatrixProduct holds by construction.
//!
//! Shapes      storage [ceil(outputs / granule) * granule * inputs], 64-byte aligned for full speed
//! Complexity  weights are read from memory once for any number of rows that fit the cache together with one panel
class packed_matrix {
 public:
  static constexpr int granule = 2 * detail::simd_lanes;

  static constexpr std::size_t storage_floats(int outputs, int inputs) {
    return static_cast<std::size_t>(panels(outputs)) * granule * static_cast<std::size_t>(inputs);
  }

  packed_matrix() = default;
  packed_matrix(int outputs, int inputs, float* storage) : outputs_(outputs), inputs_(inputs), data_(storage) {}

  int outputs() const { return outputs_; }
  int inputs() const { return inputs_; }

  void set_row(int output, const float* values) {
    float* lane = lane_of(output);
    for (int i = 0; i < inputs_; ++i)
      lane[static_cast<std::ptrdiff_t>(i) * granule] = values[i];
  }

  void get_row(int output, float* values) const {
    const float* lane = lane_of(output);
    for (int i = 0; i < inputs_; ++i)
      values[i] = lane[static_cast<std::ptrdiff_t>(i) * granule];
  }

  //! Where the panel of an output begins; null for an output beyond the last.
  const void* weights_of(int output) const { return output < outputs_ ? lane_of(output - output % granule) : nullptr; }

  void multiply(const float* x, std::ptrdiff_t x_stride, int rows, float* y, std::ptrdiff_t y_stride, int begin,
                int end, bool accumulate, const void* next = nullptr) const {
    if (rows == 0) return;
    const int n_tiles = (rows + max_tile_rows - 1) / max_tile_rows;
    for (int first = begin; first < end; first += granule) {
      const float* panel = data_ + static_cast<std::ptrdiff_t>(first) * inputs_;
      const int width = end - first < granule ? end - first : granule;
      // The tiles of this panel share the work of fetching the next one.
      const auto* ahead = reinterpret_cast<const char*>(panel + static_cast<std::ptrdiff_t>(granule) * inputs_);
      if (next && first + granule >= end) ahead = static_cast<const char*>(next);
      const int ahead_step = static_cast<int>(granule * sizeof(float)) / n_tiles;
      for (int tile = 0, row = 0; tile < n_tiles; ++tile) {
        const int tile_rows = (rows - row) / (n_tiles - tile);
        kernels[static_cast<std::size_t>(tile_rows)](
            {panel, ahead + static_cast<std::ptrdiff_t>(tile) * inputs_ * ahead_step, ahead_step, inputs_, width,
             x + row * x_stride, x_stride, y + row * y_stride + first, y_stride, accumulate});
        row += tile_rows;
      }
    }
    if (next && rows < prefetch_rows) {
      constexpr int start = 1 << 14;
      for (int byte = 0; byte < start; byte += 64)
        __builtin_prefetch(static_cast<const char*>(next) + byte, 0, 2);
    }
  }

 private:
  // As many rows as leave registers for a panel's two vectors and a broadcast.
  static constexpr int max_tile_rows = (detail::simd_registers - 4) / 2 > 12 ? 12 : (detail::simd_registers - 4) / 2;

  // With fewer rows the hardware foresees the stream better than software does; with more, it gives up between lines.
  static constexpr int prefetch_rows = 3;

  struct tile_arguments {
    const float* panel;
    const char* ahead;
    int ahead_step;
    int inputs;
    int width;
    const float* x;
    std::ptrdiff_t x_stride;
    float* y;
    std::ptrdiff_t y_stride;
    bool accumulate;
  };
  using kernel = void (*)(const tile_arguments&);

  static constexpr int panels(int outputs) { return (outputs + granule - 1) / granule; }

  const float* lane_of(int output) const {
    return data_ + static_cast<std::ptrdiff_t>(output / granule) * granule * inputs_ + output % granule;
  }
  float* lane_of(int output) { return const_cast<float*>(std::as_const(*this).lane_of(output)); }

  template <int RowsT>
  static void multiply_tile(const tile_arguments& a) {
    using namespace detail;
    simd_float sum[RowsT][2];
#pragma GCC unroll 16
    for (int r = 0; r < RowsT; ++r)
      sum[r][0] = sum[r][1] = simd_float{};
    const float* weights = a.panel;
    const char* ahead = a.ahead;
    for (int i = 0; i < a.inputs; ++i, weights += granule, ahead += a.ahead_step) {
      if constexpr (RowsT >= prefetch_rows) {
        __builtin_prefetch(ahead, 0, 2);
        if constexpr (granule * sizeof(float) > 64) __builtin_prefetch(ahead + a.ahead_step / 2, 0, 2);
      }
      const simd_float low = simd_load(weights);
      const simd_float high = simd_load(weights + simd_lanes);
#pragma GCC unroll 16
      for (int r = 0; r < RowsT; ++r) {
        const simd_float value = simd_broadcast(a.x[r * a.x_stride + i]);
        sum[r][0] = multiply_add(value, low, sum[r][0]);
        sum[r][1] = multiply_add(value, high, sum[r][1]);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < RowsT; ++r)
      finish_row(a, a.y + r * a.y_stride, sum[r][0], sum[r][1]);
  }

  [[gnu::always_inline]] static void finish_row(const tile_arguments& a, float* y, detail::simd_float low,
                                                detail::simd_float high) {
    using namespace detail;
    if (a.width == granule) [[likely]] {
      simd_store(y, a.accumulate ? simd_load(y) + low : low);
      simd_store(y + simd_lanes, a.accumulate ? simd_load(y + simd_lanes) + high : high);
      return;
    }
    float whole[granule];
    simd_store(whole, low);
    simd_store(whole + simd_lanes, high);
    for (int o = 0; o < a.width; ++o)
      y[o] = a.accumulate ? y[o] + whole[o] : whole[o];
  }

  template <std::size_t... RowsT>
  static constexpr std::array<kernel, sizeof...(RowsT) + 1> make_kernels(std::index_sequence<RowsT...>) {
    return {nullptr, &multiply_tile<static_cast<int>(RowsT) + 1>...};
  }
  static const std::array<kernel, static_cast<std::size_t>(max_tile_rows) + 1> kernels;

  int outputs_ = 0;
  int inputs_ = 0;
  float* data_ = nullptr;
};

inline constexpr std::array<packed_matrix::kernel, static_cast<std::size_t>(packed_matrix::max_tile_rows) + 1>
    packed_matrix::kernels = make_kernels(std::make_index_sequence<static_cast<std::size_t>(max_tile_rows)>{});

static_assert(MatrixProduct<packed_matrix>);

}  // namespace espalier
