// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/weight_matrix.cpp
#pragma once

#include <cstddef>
#include <utility>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/activation_rows.hpp"
#include "espalier/model/llama/panel_part.hpp"

namespace espalier::detail {

// The rows that a matrix is multiplied by, as floats and, for a product of integers, as integers too.
struct matrix_rows {
  const float* x;
  std::ptrdiff_t x_stride;
  int rows;
  const activation_block* integers = nullptr;  // [activation_blocks(inputs)][rows]
};

// Memory for the integers of some rows. Several threads may write different rows at the same time.
class activation_room {
 public:
  activation_room() = default;
  activation_room(int rows, int inputs)
      : block_(floats(rows, inputs), false),
        data_(reinterpret_cast<activation_block*>(block_.take(floats(rows, inputs)))) {}

  // Writes rows first to last - 1 of the `rows` rows of x as integers, and returns where all of them lie.
  const activation_block* write(const float* x, std::ptrdiff_t x_stride, int inputs, int rows, int first, int last) {
    constexpr int size = activation_block::size;
    for (int row = first; row < last; ++row) {
      for (int b = 0; b < activation_blocks(inputs); ++b) {
        const int rest = inputs - size * b;
        quantise_block(x + row * x_stride + size * b, rest < size ? rest : size,
                       data_[static_cast<std::ptrdiff_t>(b) * rows + row]);
      }
    }
    return data_;
  }

 private:
  static std::size_t floats(int rows, int inputs) {
    return static_cast<std::size_t>(rows) * static_cast<std::size_t>(activation_blocks(inputs)) *
           sizeof(activation_block) / sizeof(float);
  }

  float_block block_;
  activation_block* data_ = nullptr;
};

// Working memory of one thread during a product.
class product_room {
 public:
  static constexpr int outputs = 32;  // of a granule

  explicit product_room(int rows)
      : block_(outputs * static_cast<std::size_t>(rows + panel_part::inputs), false),
        decoded_(block_.take(static_cast<std::size_t>(outputs * panel_part::inputs))),
        sums_(block_.take(outputs * static_cast<std::size_t>(rows))) {}

  float* decoded() { return decoded_; }  // [panel_part::inputs][outputs]
  float* sums() { return sums_; }        // [rows][outputs]

 private:
  float_block block_;
  float* decoded_;
  float* sums_;
};

}  // namespace espalier::detail
