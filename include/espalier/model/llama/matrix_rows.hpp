// SPDX-License-Identifier: BSL-1.0
// Tested by tests/model/llama/weight_matrix.cpp
#pragma once

#include <cstddef>

#include "espalier/kv_store/memory/float_block.hpp"
#include "espalier/model/llama/activation_rows.hpp"
#include "espalier/model/llama/panel_part.hpp"

namespace espalier::detail {

// The rows that a matrix is multiplied by, as floats and, for a product of integers, as integers too.
struct matrix_rows {
  const float* x;
  std::ptrdiff_t x_stride;
  int rows;
  activation_rows integers{};  // its blocks are null if there are none
};

// Working memory of one thread during a product.
class product_room {
 public:
  static constexpr int outputs = 32;  // outputs of a granule of weight_matrix

  explicit product_room(int rows)
      : block_(outputs * (2 * static_cast<std::size_t>(rows) + panel_part::inputs), false),
        decoded_(block_.take(static_cast<std::size_t>(outputs * panel_part::inputs))),
        sums_(block_.take(2 * outputs * static_cast<std::size_t>(rows))) {}

  float* decoded() { return decoded_; }  // [panel_part::inputs][outputs]
  float* sums() { return sums_; }        // [rows][outputs]
  // Sums of integers, [rows][outputs], in the memory of sums().
  double* integer_sums() { return reinterpret_cast<double*>(sums_); }

 private:
  float_block block_;
  float* decoded_;
  float* sums_;
};

}  // namespace espalier::detail
